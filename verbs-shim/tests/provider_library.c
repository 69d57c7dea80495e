/* Stands for libibverbs: takes a function table over as verbs_set_ops does, what is not null. OPS is its length, and
 * the version is given at link time. */
const void *taken[OPS];

void verbs_set_ops(void *context, const void *const *ops)
{
	(void)context;
	for (int i = 0; i < OPS; i++)
		if (ops[i])
			taken[i] = ops[i];
}

int ibv_cmd_attach_mcast(void)
{
	return 1;
}

int ibv_cmd_detach_mcast(void)
{
	return 2;
}

int ibv_cmd_req_notify_cq(void)
{
	return 3;
}
