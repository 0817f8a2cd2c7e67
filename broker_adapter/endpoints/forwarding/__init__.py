"""Forwards each call that only another node can answer to that node, over one stream per node. A forwarded
call is not forwarded again.

Every node accepts every call. `Forwarder` selects the destination and waits until one is available.
`MasterLink` is the end of a stream on the calling node, and `ForwardService` is the end on the master.
"""
