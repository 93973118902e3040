from geminga.client.admin.aio.admin import Admin as Admin
from geminga.client.aio import Client as Client
from geminga.client.consumer import AsyncConsumer
from geminga.client.enums import BatchingType as BatchingType
from geminga.client.enums import CompressionType as CompressionType
from geminga.client.enums import ConsumerCryptoFailureAction as ConsumerCryptoFailureAction
from geminga.client.enums import ConsumerType as ConsumerType
from geminga.client.enums import InitialPosition as InitialPosition
from geminga.client.enums import PartitionsRoutingMode as PartitionsRoutingMode
from geminga.client.enums import ProducerAccessMode as ProducerAccessMode
from geminga.client.enums import RegexSubscriptionMode as RegexSubscriptionMode
from geminga.client.producer import AsyncProducer
from geminga.client.reader import AsyncReader
from geminga.client.redrive import Redrive as Redrive
from geminga.client.redrive import RedriveFilter as RedriveFilter
from geminga.client.redrive import RedriveResult as RedriveResult
from geminga.client.table_view import AsyncTableView
from geminga.client.transactions import AsyncTransaction
from geminga.errors import PulsarException as PulsarException
from geminga.transactions import TransactionState as TransactionState

Consumer = AsyncConsumer
Producer = AsyncProducer
Reader = AsyncReader
TableView = AsyncTableView
Transaction = AsyncTransaction
