"""Prints, for each packet of a capture, the fields that scapy's RoCE layer finds and the ICRC that it computes."""
import sys
from zlib import crc32

from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw, raw
from scapy.utils import RawPcapNgReader
from scapy.layers.l2 import Ether

FIELDS = "opcode solicited migreq padcount version pkey fecn becn dqpn ackreq psn icrc".split()


def icrc_v6(frame):
    """scapy computes the ICRC of IPv4 packets only: the same with the variant fields of IPv6 masked by its layers."""
    ip = frame[IPv6].copy()
    ip.tc, ip.fl, ip.hlim = 0xFF, 0xFFFFF, 0xFF
    ip.payload.chksum = 0xFFFF
    bth = ip[BTH]
    bth.fecn, bth.becn, bth.resv6 = 1, 1, 0x3F
    return (crc32(b"\xff" * 8 + raw(ip)[:-4]) & 0xFFFFFFFF).to_bytes(4, "little")


for data, _ in RawPcapNgReader(sys.argv[1]):
    frame = Ether(data)
    bth = frame[BTH]
    values = {name: getattr(bth, name) for name in FIELDS}
    computed = bth.compute_icrc(None) if IP in frame else icrc_v6(frame)
    values["computed"] = int.from_bytes(computed, "big")
    if AETH in frame:
        values["syndrome"], values["msn"] = frame[AETH].syndrome, frame[AETH].msn
    print(*(f"{name}={int(value)}" for name, value in values.items()))
