"""Every packet, once: its method id, its fields, what answers it, who may send it.

login          to log in, and to ask what one then may do
clients        to become a client, to find one, to delete one
queues         to make, find, list, change, empty and delete them
puts           to put messages, and to hear what became of a put
reads          to take a single message
browsing       to read without holding, and to acknowledge by id
subscriptions  to have messages pushed
settling       what becomes of messages that a consumer holds
prefetch       how many these may be
run            how messages travel to a client
transactions   puts and acknowledgements, all or none
topics         to publish once for many queues
dead_letters   to send them back
live_numbers   to ask for them
cluster        nodes, the queues that they own, and machines
membership     to come to a logical queue, to go, and to be sent around
topologies     where the messages of logical queues are
exchange       messages, from replica to replica
steering       what the loops are to do, and what they have decided
registry       all of them, by their ids

Telesto's ids (its table 3.6) are kept where the method exists. Its rule, odd from
client to node and even from node to client, answer = request + 1, is kept too, so
the ids where Telesto's own table breaks the rule differ: Success 0x03 → 0x04,
Error 0x05 → 0x06, ReadMessage 0x32 → 0x33, its response 0x33 → 0x34, ReadResponse
0x34 → 0x35. The reference in docs/wire-protocol.md is generated from them.
"""
