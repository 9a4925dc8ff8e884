"""A PostgreSQL cluster, and a TCP proxy that cuts connections to it."""

from servers.proxy import Proxy
from servers.server import Cluster
from servers.server import running_cluster as running

__all__ = ["Cluster", "Proxy", "running"]
