/* Prints which functions of the provider's table were replaced, after checking that they still do their work. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>

extern const void *taken[OPS];
extern const void *const *const own;
extern int polls, starts;
void open_device(void);

typedef int poll_cq(struct ibv_cq *, int, struct ibv_wc *);
typedef struct ibv_cq_ex *create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);

int main(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 77 };

	open_device();
	open_device();	/* a second device of the same provider */
	if (((poll_cq *)taken[POLL_CQ])(0, 1, 0) != 0 || ((poll_cq *)taken[POLL_CQ])(0, 5, 0) != 4 || polls != 2)
		return 1;
	struct ibv_cq_ex *cq = ((create_cq_ex *)taken[CREATE_CQ_EX])(0, &attr);
	if (cq->cqe != 77 || cq->start_poll(cq, 0) != ENOENT || starts != 1)
		return 2;
	for (int i = 0; i < OPS; i++)
		if (taken[i] != own[i])
			printf("%d ", i);
	return 0;
}
