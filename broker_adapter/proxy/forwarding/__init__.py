"""Every node takes every call: what another node has to answer goes to it over one stream, and no further.

`Forwarder` decides and waits; a `MasterLink` is the calling node's end of a stream, `ForwardService` the
master's.
"""
