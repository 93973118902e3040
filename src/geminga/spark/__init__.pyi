from geminga.spark.datasource import PulsarDataSource as PulsarDataSource
from geminga.spark.observing import observed as observed
from geminga.spark.observing import query_lag as query_lag
from geminga.spark.observing import serve_metrics as serve_metrics
from geminga.spark.sessions import register as register
from geminga.spark.sessions import session as session
from geminga.spark.snapshots import Snapshot as Snapshot
from geminga.spark.snapshots import snapshot as snapshot
