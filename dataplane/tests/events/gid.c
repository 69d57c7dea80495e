/* Addresses of a NIC that come and go while programs have it open. Somebody else gives the orders. */
#include "probe.h"

#include <arpa/inet.h>

/* The GID of an IPv4 address. */
static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	check(inet_pton(AF_INET, address, &gid.raw[12]) == 1, "%s is no address", address);
	return gid;
}

static bool is_at(struct end *end, int index, const char *address)
{
	union ibv_gid gid, wanted = { 0 };

	if (address)
		wanted = gid_of(address);
	check(ibv_query_gid(end->context, 1, index, &gid) == 0, "ibv_query_gid %d on %s", index, end->name);
	return memcmp(&gid, &wanted, sizeof gid) == 0;
}

/* Entries that are not empty. */
static int entries(struct end *end)
{
	struct ibv_gid_entry all[32];
	ssize_t count = ibv_query_gid_table(end->context, all, 32, 0);

	check(count >= 0, "ibv_query_gid_table on %s: %zd", end->name, count);
	for (ssize_t i = 0; i < count; i++)
		check(all[i].gid_type == IBV_GID_TYPE_ROCE_V2, "GID %u on %s is not RoCE v2", all[i].gid_index, end->name);
	return count;
}

/* The errno of an address handle from a GID index of one end to the first GID of the other. */
static int handle_error(struct end *end, struct end *peer, int index, struct ibv_ah **handle)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = index, .hop_limit = 64 } };

	check(ibv_query_gid(peer->context, 1, 0, &attr.grh.dgid) == 0, "no GID on %s", peer->name);
	errno = 0;
	*handle = ibv_create_ah(end->pd, &attr);
	return *handle ? 0 : errno;
}

/* The errno of a QP's way to RTR from a GID index. */
static int rtr_error(struct end *end, struct end *peer, int index)
{
	struct how in_init = { .stop = 1 + IBV_QPS_INIT };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 17,
				    .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
				    .ah_attr = { .is_global = 1, .port_num = 1,
						 .grh = { .hop_limit = 64, .sgid_index = index } } };
	struct end both[2] = { *end, *peer };

	both[0].qp = both[1].qp = NULL;
	join(both, &in_init);
	check(ibv_query_gid(peer->context, 1, 0, &attr.ah_attr.grh.dgid) == 0, "no GID on %s", peer->name);
	int error = modify(&both[0], attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	for (int i = 0; i < 2; i++)
		check(ibv_destroy_qp(both[i].qp) == 0, "ibv_destroy_qp");
	return error;
}

/* roce0, at first with three addresses, gets 10.77.0.9, loses it, and gets 10.77.0.8 and 10.77.0.7. */
void gid_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how by_new = { .gid = { 3, 0 } };
	struct ibv_ah *handle, *none;

	connect_pair(ends, patient);
	check(entries(a) == 3 && is_at(a, 3, NULL), "%s has other GIDs than it should at first", a->name);
	check(rtr_error(a, b, 3) == EINVAL, "RTR from an empty index");
	check(handle_error(a, b, 3, &none) == EINVAL, "an address handle from an empty index");
	printf("ready\n");

	expect_event(a, "added", IBV_EVENT_GID_CHANGE, NULL);
	check(entries(a) == 4 && is_at(a, 3, "10.77.0.9"), "%s has not got its new GID", a->name);
	check(entries(b) == 3, "%s has another GID", b->name);
	check(rtr_error(a, b, 3) == 0, "RTR from the new index");
	check(handle_error(a, b, 3, &handle) == 0, "an address handle from the new index");
	join(ends, &by_new);
	for (int i = 0; i < 2; i++) {
		fill(&ends[i], 7 + i, 3000);
		blank(&ends[1 - i]);
		post_op(&ends[i], &ends[1 - i], IBV_WR_RDMA_WRITE, 3000, i);
		expect(&ends[i], "a WRITE by the new address", i, IBV_WC_SUCCESS);
		check_bytes(&ends[1 - i], "a WRITE by the new address", 7 + i, 3000);
	}
	printf("connected\n");

	expect_event(a, "removed", IBV_EVENT_GID_CHANGE, NULL);
	check(entries(a) == 3 && is_at(a, 3, NULL), "%s has its GID still", a->name);
	check(rtr_error(a, b, 3) == EINVAL, "RTR from an index that is empty again");
	check(handle_error(a, b, 3, &none) == EINVAL, "an address handle from an index that is empty again");
	expect_state(a, IBV_QPS_RTS);
	for (int i = 0; i < 2; i++) {
		post_op(&ends[i], &ends[1 - i], IBV_WR_RDMA_WRITE, 8, 10 + i);
		expect(&ends[i], "a WRITE by an address that is gone", 10 + i, IBV_WC_RETRY_EXC_ERR);
		expect_state(&ends[i], IBV_QPS_ERR);
	}
	check(query(a).ah_attr.grh.sgid_index == 3, "the QP on %s names another index", a->name);
	printf("failed\n");

	/* Index 3 is the QP's and the handle's still. */
	expect_event(a, "added", IBV_EVENT_GID_CHANGE, NULL);
	check(is_at(a, 3, NULL) && is_at(a, 4, "10.77.0.8"), "an index that is held was given to another address");
	check(ibv_destroy_ah(handle) == 0, "ibv_destroy_ah");
	for (int i = 0; i < 2; i++) {
		check(ibv_destroy_qp(ends[i].qp) == 0, "ibv_destroy_qp");
		ends[i].qp = NULL;
	}
	printf("free\n");
	expect_event(a, "added", IBV_EVENT_GID_CHANGE, NULL);
	check(entries(a) == 5 && is_at(a, 3, "10.77.0.7"), "an index that nobody holds was not used");

	struct how usual = { 0 };
	join(ends, &usual);
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 20);
	expect(a, "by the first address", 20, IBV_WC_SUCCESS);
	for (int i = 0; i < 2; i++)
		expect_no_event(&ends[i], "addresses");
	close_pair(ends);
}

/* roce0 gets an address, loses its link, the address, and gets its link back. */
void gid_order_case(void)
{
	static const enum ibv_event_type order[] = { IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ERR, IBV_EVENT_GID_CHANGE,
						     IBV_EVENT_PORT_ACTIVE };
	struct end ends[2];
	struct end *a = &ends[0];

	connect_pair(ends, patient);
	struct ibv_context *again = ibv_open_device(a->context->device);
	check(again != NULL, "%s does not open twice", a->name);
	printf("ready\n");
	for (size_t i = 0; i < sizeof order / sizeof *order; i++)
		expect_event(a, "in order", order[i], NULL);
	/* Each open of the device is told, and once. */
	struct end second = { .name = "the second open", .context = again };
	for (size_t i = 0; i < sizeof order / sizeof *order; i++)
		expect_event(&second, "in order", order[i], NULL);
	expect_no_event(a, "in order");
	expect_no_event(&second, "in order");
	expect_event(&ends[1], "link of the other end", IBV_EVENT_PORT_ERR, NULL);
	expect_event(&ends[1], "link of the other end", IBV_EVENT_PORT_ACTIVE, NULL);
	expect_no_event(&ends[1], "addresses of the other end");
	check(ibv_close_device(again) == 0, "ibv_close_device");
	close_pair(ends);
}
