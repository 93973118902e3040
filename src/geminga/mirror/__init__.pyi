from geminga.client.cluster import Cluster as Cluster
from geminga.mirror.mirror import Mirror as Mirror
from geminga.mirror.pairing import MirrorRefused as MirrorRefused
from geminga.mirror.settings import MirrorSettings as MirrorSettings
from geminga.mirror.status import MirrorStatus as MirrorStatus
