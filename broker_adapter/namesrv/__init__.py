"""The NameServer: routes of topics, the brokers that live, settings by namespace; its client; registration.

Names for programs: `broker_adapter.namesrv.client.NameServerClient`,
`broker_adapter.namesrv.registration.Registrar` and the values in `broker_adapter.namesrv.values`.
"""
