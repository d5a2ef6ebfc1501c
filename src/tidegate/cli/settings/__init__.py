"""The settings: one TOML file, with the environment above it.

    [node]                       TIDEGATE_NODE__PORT=7412
    port = 7411                  TIDEGATE_STORE__URLS=postgresql://a/x,postgresql://b/x
    lease = "3s"
    [queues.orders]              TIDEGATE_QUEUES__ORDERS__MAX_LOAD=200
    max_load = 100

Each section is a Struct in a file of its name, each key a field, each field says what it allows;
everything else here is derived from that.

settings        all sections together
field           what a key measures and allows
queue_sections  [queues.NAME]
reader          reads file and environment, and complains
document        the settings as one would write them
"""
