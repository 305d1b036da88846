"""One row for every kind of finding: what is changed on a healthy pair, where it is then found, and words that it says."""

from tests.cluster.doctor.cases_fabric import NETWORK, RDMA, REACH
from tests.cluster.doctor.cases_nccl import NCCL, TRANSFER
from tests.cluster.doctor.cases_node import DOCKER, GPU, STORAGE, SYSTEM

CASES = (*REACH, *NETWORK, *RDMA, *NCCL, *TRANSFER, *GPU, *SYSTEM, *DOCKER, *STORAGE)
