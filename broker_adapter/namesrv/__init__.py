"""The NameServer (topic routes, registered brokers, settings by namespace), its client, and the registration
of brokers.

Entry points: `broker_adapter.namesrv.client.NameServerClient`,
`broker_adapter.namesrv.registration.Registrar` and the values in `broker_adapter.namesrv.values`.
"""
