from geminga.client.admin.aio.admin import Admin as Admin
from geminga.client.api.aio import Client as Client
from geminga.client.api.redrive import Redrive as Redrive
from geminga.client.api.redrive import RedriveFilter as RedriveFilter
from geminga.client.api.redrive import RedriveResult as RedriveResult
from geminga.client.options.enums import BatchingType as BatchingType
from geminga.client.options.enums import CompressionType as CompressionType
from geminga.client.options.enums import ConsumerCryptoFailureAction as ConsumerCryptoFailureAction
from geminga.client.options.enums import ConsumerType as ConsumerType
from geminga.client.options.enums import InitialPosition as InitialPosition
from geminga.client.options.enums import PartitionsRoutingMode as PartitionsRoutingMode
from geminga.client.options.enums import ProducerAccessMode as ProducerAccessMode
from geminga.client.options.enums import RegexSubscriptionMode as RegexSubscriptionMode
from geminga.client.publish.producer import AsyncProducer
from geminga.client.receive.consumer import AsyncConsumer
from geminga.client.receive.reader import AsyncReader
from geminga.client.receive.table_view import AsyncTableView
from geminga.client.transactions import AsyncTransaction
from geminga.errors import PulsarException as PulsarException
from geminga.transactions import TransactionState as TransactionState

Consumer = AsyncConsumer
Producer = AsyncProducer
Reader = AsyncReader
TableView = AsyncTableView
Transaction = AsyncTransaction
