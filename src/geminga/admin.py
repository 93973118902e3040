"""Arguments and results of `geminga.Admin` and `geminga.asyncio.Admin`: policies, statistics, messages,
schemas."""

from geminga.client.admin.exchange import topic_path as topic_path
from geminga.client.admin.types import Advice as Advice
from geminga.client.admin.types import BrokerInfo as BrokerInfo
from geminga.client.admin.types import ClusterData as ClusterData
from geminga.client.admin.types import Compatibility as Compatibility
from geminga.client.admin.types import ConsumerStats as ConsumerStats
from geminga.client.admin.types import CursorInfo as CursorInfo
from geminga.client.admin.types import Explanation as Explanation
from geminga.client.admin.types import Finding as Finding
from geminga.client.admin.types import InternalStats as InternalStats
from geminga.client.admin.types import LedgerInfo as LedgerInfo
from geminga.client.admin.types import LongRunningProcessStatus as LongRunningProcessStatus
from geminga.client.admin.types import PublisherStats as PublisherStats
from geminga.client.admin.types import SchemaVersion as SchemaVersion
from geminga.client.admin.types import StoredMessage as StoredMessage
from geminga.client.admin.types import SubscriptionStats as SubscriptionStats
from geminga.client.admin.types import TenantInfo as TenantInfo
from geminga.client.admin.types import TopicStats as TopicStats
from geminga.policies import AutoSubscriptionCreation as AutoSubscriptionCreation
from geminga.policies import AutoTopicCreation as AutoTopicCreation
from geminga.policies import BacklogQuota as BacklogQuota
from geminga.policies import DelayedDelivery as DelayedDelivery
from geminga.policies import DispatchRate as DispatchRate
from geminga.policies import InactiveTopics as InactiveTopics
from geminga.policies import Persistence as Persistence
from geminga.policies import PublishRate as PublishRate
from geminga.policies import RedeliverUnacked as RedeliverUnacked
from geminga.policies import Retention as Retention
from geminga.policies import SubscribeRate as SubscribeRate

__all__ = sorted(name for name in globals() if name[0].isupper() or name == "topic_path")
