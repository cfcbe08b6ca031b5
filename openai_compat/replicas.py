"""What replicas share through one Redis, and its life in this process."""

from __future__ import annotations

from collections.abc import Callable

from openai_compat.admission import Admission
from openai_compat.config import WireConfig
from openai_compat.leased_admission import LeasedAdmission
from openai_compat.redis_limits import RedisBuckets, RedisLeases, RedisSpending
from openai_compat.redis_link import RedisLink


class Replicas:
    """The shared limits of a service whose configuration names a Redis."""

    def __init__(self, config: WireConfig, *, on_failure: Callable[[], None]) -> None:
        """Raises: ValueError for an address that is none."""
        assert config.redis_url is not None
        self._config = config
        self._link = RedisLink(config.redis_url, prefix=config.redis_prefix, on_failure=on_failure)
        self._leases = RedisLeases(self._link)
        self.buckets = RedisBuckets(self._link)
        self.spending = RedisSpending(self._link)

    def admissions(self, *, on_change: Callable[[int, int], None]) -> tuple[Admission, Admission]:
        """Of completions, and of calls that are answered whole."""
        config, leases = self._config, self._leases
        return (
            LeasedAdmission.from_config(
                config, on_change=on_change, leases=leases, kind="completions", queue_size=config.queue_size
            ),
            LeasedAdmission.for_embeddings(config, leases=leases, kind="embeddings"),
        )

    async def aclose(self) -> None:
        """Give back what is held, and close the connections."""
        await self._leases.aclose()
        await self._link.aclose()
