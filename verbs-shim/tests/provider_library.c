/* Stands for libibverbs: takes a function table as verbs_set_ops does. Its version is given at link time. */
const void *const *taken;

void verbs_set_ops(void *context, const void *const *ops)
{
	static const void *copy[76];

	(void)context;
	for (int i = 0; i < 76; i++)
		copy[i] = ops[i];
	taken = copy;
}
