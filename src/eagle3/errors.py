"""The one root error. Each message says what was wrong, where, and what to do about it."""

EXIT_DONE, EXIT_FAILED, EXIT_BAD_CONFIG, EXIT_INTERRUPTED = 0, 1, 2, 130


class Eagle3Error(Exception):
    """Something a user can act on. Shown without a traceback; `exit_code` becomes the process's."""

    exit_code = EXIT_FAILED


class ConfigError(Eagle3Error):
    """The configuration is wrong: names the key and the remedy. Raised before any work starts."""

    exit_code = EXIT_BAD_CONFIG


class DataError(Eagle3Error):
    """A dataset, prompt file or shard is not what it should be."""


class ServerError(Eagle3Error):
    """The SGLang server did not start, died, or did not behave."""


class ServerLostError(ServerError):
    """A server that was started is gone, or as good as gone: another one may do better."""


class ServerStalledError(ServerLostError):
    """It lives, and makes no progress."""


class RejectedError(ServerError):
    """The server is well, and does not take this request (HTTP 400)."""


class ProofError(Eagle3Error):
    """Dumped hidden states do not agree with what the server itself computes."""


class TrainingError(Eagle3Error):
    """The trainer could not go on."""


class Interrupted(Eagle3Error):  # noqa: N818 - not an error but what a user asked for
    """Ctrl-C or SIGTERM, after a clean stop."""

    exit_code = EXIT_INTERRUPTED
