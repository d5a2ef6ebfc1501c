"""The settings: one TOML file, overridden by environment variables.

    [node]                       TIDEGATE_NODE__PORT=7412
    port = 7411                  TIDEGATE_STORE__URLS=postgresql://a/x,postgresql://b/x
    lease = "3s"

    [queues.orders]              TIDEGATE_QUEUES__ORDERS__MAX_LOAD=200
    max_load = 100

Each section is a Struct in a module of its name. Each field is a key, and its annotation says which
values are allowed. The other modules derive everything from these Structs:

    settings        all sections together
    field           the unit and the allowed values of a key
    queue_sections  [queues.NAME]
    reader          reads file and environment, and reports problems
    document        the settings as TOML-like sections and keys
"""
