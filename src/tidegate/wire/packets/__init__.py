"""All packets: their method ids, fields, answers, and the rights they need.

Packets are grouped by subject, and a registry contains all of them by method id.

Telesto's ids (its table 3.6) are kept where the method exists. Telesto's rule is kept, too: ids
from client to node are odd, ids from node to client are even, and an answer has the id of its
request plus 1. Telesto's own table breaks this rule in five places, where the ids differ: Success
0x03 → 0x04, Error 0x05 → 0x06, ReadMessage 0x32 → 0x33, its response 0x33 → 0x34, ReadResponse 0x34
→ 0x35. The reference in docs/wire-protocol.md is generated from the packets.
"""
