"""Environment variables that NCCL reads, and what they may be set to: NCCL itself silently ignores a misspelt one.

The names are those in the library of NCCL 2.30, and those that its documentation lists for older versions.
"""

import difflib
import re
from collections.abc import Mapping, Sequence

PREFIX = "NCCL_"

_TEXT = """
ALGO ALLGATHERV_ENABLE ALLOC_HOST ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE CHECK_MODE
CHECK_POINTERS COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID COMM_SHRINK_SHARE_RESOURCES
COMM_SPLIT_SHARE_RESOURCES CONF_FILE CONNECT_ROUND_MAX_PEERS CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE
DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DEV_API_JIT DISABLE_MEM_MANAGER
DMABUF_ENABLE ELASTIC_BUFFER_REGISTER ENABLE_VERSION_CHECK ENV_PLUGIN GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE
GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE GIN_ENABLE GIN_ERROR_QUERY_SEC
GIN_GDAKI_GPU_CONTEXT_MAX_SIZE GIN_GDAKI_GPU_CONTEXT_VERSION GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC
GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_ALLGATHER_TAG GIN_IB_ALLTOALL_TAG GIN_IB_TC GIN_NCONNECTIONS
GIN_PLUGIN GIN_PROXY_GPU_CONTEXT_MAX_SIZE GIN_PROXY_GPU_CONTEXT_VERSION GIN_PROXY_QUEUE_SIZE GIN_TYPE
GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK GRAPH_FILE GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER
GRAPH_STREAM_ORDERING GROUP_CUDA_STREAM HOSTID IBVERBS_LIB IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE
IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GDR_LEVEL
IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_OOO_RQ
IB_PCI_RELAXED_ORDERING IB_PKEY IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QPS_PER_CONNECTION IB_QUERY_PORT_SPEED
IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS
IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS
IB_ROCE_VERSION_NUM IB_ROUTABLE_FLID_GID_INDEX IB_SL IB_SPLIT_DATA_ON_QPS IB_SUBNET_AWARE_ROUTING
IB_SUBNET_PREFIX_LEN IB_TC IB_TIMEOUT IB_USE_INLINE IB_WARN_RAIL_LOCAL IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY
IGNORE_DISABLED_P2P IGNORE_NET_MISMATCH IPC_COLLECTIVE IPC_SENDRECV L1_SHARED_MEMORY_CARVEOUT LAUNCH_MODE
LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LL128_BUFFSIZE LL128_C2C LL128_NTHREADS LL_BUFFSIZE
LL_THRESHOLD LOCAL_REGISTER LSA_TEAM_SIZE MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN
MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS MLOPART_RDMA_ENABLE MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE
MNNVL_ENABLE MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE MULTI_SEGMENT_REGISTER
NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_DISABLE_INTRA NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_C2C
NET_GDR_LEVEL NET_GDR_MLOPART NET_GDR_READ NET_MERGE_LEVEL NET_MERGE_POLICY NET_OPTIONAL_RECV_COMPLETION NET_PLUGIN
NET_SHARED_BUFFERS NET_SHARED_COMMS NO_CACHE NSOCKS_PERTHREAD NTHREADS NUM_RMA_CTX NVB_DISABLE NVB_PRECONNECT
NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS NVTX_DISABLE
OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_EPOCH_ENABLE P2P_LEVEL P2P_LL_THRESHOLD
P2P_MAX_PEERS P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_BW P2P_PXN_LEVEL
P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY PAT_ENABLE PROFILER_PLUGIN PROGRESS_APPENDOP_FREQ PROTO
PROXY_APPEND_BATCH_SIZE PROXY_CPUSET PROXY_DUMP_SIGNAL PXN_C2C PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR
REPORT_CONNECT_PROGRESS RINGS RMA_DISABLE RMA_PLUGIN RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE RUNTIME_CONNECT
SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME SHADOW_MEMPOOL_MAX_SIZE SHM_DISABLE SHM_LOCALITY
SINGLE_PROC_MEM_REG_ENABLE SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_INLINE SOCKET_MIN_TASKSIZE
SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RCVBUF SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_SNDBUF
SYM_CE_THRESHOLD SYM_CTAS SYM_GIN_KERNELS_ENABLE SYM_KERNEL SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES
SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE
TOPO_SPLIT_MLOPART TREE_THRESHOLD TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD UNPACK_DOUBLE_NCHANNELS
WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES
"""
_NAMES = frozenset(PREFIX + name for name in _TEXT.split())

ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
"""Each in the order of NCCL's own numbers for them."""
_NOT_FOR = {"AllGather": {"Tree", "CollnetChain", "NVLSTree"}, "AllReduce": {"PAT"}}
"""The algorithms that NCCL does not have for each collective that a server needs."""
MAX_CHANNELS = 64
LABELS = ("NCCL_VERSION",)
"""Set by container images, to say which package is in them; not settings."""

_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", *"012345")
_SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP"),
    *("REG", "PROFILE", "RAS", "DESTROY", "ALL"),
)
_ONE_OF = {
    "NCCL_P2P_LEVEL": _LEVELS,
    "NCCL_NET_GDR_LEVEL": _LEVELS,
    "NCCL_DEBUG": ("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "NCCL_LAUNCH_MODE": ("PARALLEL", "GROUP"),
    "NCCL_NTHREADS": ("64", "128", "256", "512"),
}
_LISTS = {
    "NCCL_ALGO": (*ALGORITHMS, "Collnet"),
    "NCCL_PROTO": PROTOCOLS,
    "NCCL_DEBUG_SUBSYS": _SUBSYSTEMS,
}
"""Comma-separated, all but these with a ^ in front; for ALGO and PROTO since 2.24 also for each function."""
CHOICES = {"NCCL_ALGO", "NCCL_PROTO"}
"""Of these a value that NCCL can't take ends the server."""
_OF_NVLS = {"NVLS", "NVLSTree"}
_LARGEST_BUFFER = 2**31 - 1
"""NCCL counts a buffer's bytes in an int."""
_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
_POSITIVE = ("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_P2P_NVL_CHUNKSIZE")
_SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_P2P_DIRECT_DISABLE")


def unknown(name: str) -> str | None:
    """What is wrong with a name that no NCCL reads; None for a known one."""
    if name in _NAMES:
        return None
    close = difflib.get_close_matches(name, _NAMES, n=1)
    return f"no NCCL variable is called so{f'; did you mean {close[0]}' if close else ''}"


def impossible(name: str, value: str) -> str | None:
    """What is wrong with a value; None for one that NCCL may take."""
    if name in _ONE_OF:
        allowed = _ONE_OF[name]
        return None if value.upper() in allowed else f"is not one of {', '.join(allowed)}"
    if name in _LISTS:
        parts = [part for function in value.split(";") for part in function.rsplit(":", 1)[-1].strip("^").split(",")]
        known = [item.upper() for item in _LISTS[name]]
        wrong = [part for part in parts if part.upper() not in known]
        if wrong:
            return f"{', '.join(wrong) or 'nothing'} is not one of {', '.join(_LISTS[name])}"
        for collective, without in _NOT_FOR.items() if name == "NCCL_ALGO" else ():
            if allowed_in(value, ALGORITHMS, collective) <= without:
                return (
                    f"leaves {collective} without an algorithm, at which NCCL fails from 2.24 on; say for which "
                    "collective it is, as in allreduce:Tree"
                )
        for collective in _NOT_FOR if name == "NCCL_PROTO" else ():
            if not allowed_in(value, PROTOCOLS, collective):
                return f"leaves {collective} without a protocol"
        return None
    if name in _CHANNELS:
        good = value.isdecimal() and 1 <= int(value) <= MAX_CHANNELS
        return None if good else f"must be a number of channels from 1 to {MAX_CHANNELS}"
    if name in _POSITIVE:
        good = value.isdecimal() and 0 < int(value) <= _LARGEST_BUFFER
        return None if good else f"must be a number of bytes from 1 to {_LARGEST_BUFFER}"
    if name in _SWITCHES:
        return None if value in ("0", "1") else "must be 0 or 1"
    if re.search(r"_(DISABLE|ENABLE|THRESHOLD|CHUNKSIZE|BUFFSIZE|NTHREADS|NCHANNELS)$", name):
        return None if re.fullmatch(r"-?[0-9]+", value) else "must be a whole number"
    return None


def allowed_in(value: str, known: Sequence[str], collective: str) -> set[str]:
    """Those of `known` that NCCL_ALGO or NCCL_PROTO leaves to a collective (AllReduce, AllGather).

    What has no `collective:` in front is for all that have none of their own; all are allowed where nothing is said.
    """
    lists = {}
    for part in value.split(";"):
        function, _, items = part.rpartition(":")
        lists[function.upper()] = items
    items = lists.get(collective.upper(), lists.get(""))
    if items is None:
        return set(known)
    named = {item.upper() for item in items.strip("^").split(",")}
    given = {name for name in known if name.upper() in named or (name.startswith("Collnet") and "COLLNET" in named)}
    return set(known) - given if items.startswith("^") else given


def contradiction(env: Mapping[str, str]) -> str | None:
    """Two settings that can't both be followed."""
    for kind in ("NCHANNELS", "CTAS"):
        low, high = env.get(f"NCCL_MIN_{kind}"), env.get(f"NCCL_MAX_{kind}")
        if low and high and low.isdecimal() and high.isdecimal() and int(low) > int(high):
            return f"NCCL_MIN_{kind}={low} is more than NCCL_MAX_{kind}={high}"
    if env.get("NCCL_NVLS_ENABLE", "0") == "0" and "NCCL_ALGO" in env:
        for collective, without in _NOT_FOR.items():
            left = allowed_in(env["NCCL_ALGO"], ALGORITHMS, collective) - without
            if left and left <= _OF_NVLS:
                own = "" if "NCCL_NVLS_ENABLE" in env else ", which SGLang sets where nothing else does"
                return f"NCCL_ALGO={env['NCCL_ALGO']} with NCCL_NVLS_ENABLE=0{own}"
    if env.get("NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in env:
        return f"NCCL_P2P_LEVEL={env['NCCL_P2P_LEVEL']} with NCCL_P2P_DISABLE=1"
    return None
