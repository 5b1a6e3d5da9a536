"""The cache that a configuration asks for."""

from collections.abc import Callable

from headrace.config.fleet.cache import CacheConfig, SemanticMode
from headrace.core.clock import Clock
from headrace.fleet.cache.front import ResponseCache
from headrace.fleet.cache.redis_store import RedisStore
from headrace.fleet.cache.semantic.cache import SemanticCache
from headrace.fleet.cache.semantic.embeddings import HttpEmbedder
from headrace.fleet.cache.sqlite_store import SqliteStore
from headrace.fleet.cache.store import Store
from headrace.observe.metrics import Metrics


def open_cache(
    config: CacheConfig,
    clock: Clock,
    metrics: Metrics,
    model_label: Callable[[str], str] = str,
    version_of: Callable[[str], str] = lambda _: "",
) -> ResponseCache:
    """Ready to use, even where it is not enabled. Raises ConfigError for a file or address that cannot be used."""
    semantic = config.semantic
    is_semantic = config.enabled and semantic.mode is not SemanticMode.OFF
    embedder = HttpEmbedder(semantic, clock) if is_semantic else None
    cache = ResponseCache(config, _store(config, clock), clock, metrics, model_label, version_of)
    if embedder is not None:
        cache.attach(
            SemanticCache(
                semantic,
                embedder,
                cache.find,
                clock,
                metrics,
                namespace=config.namespace,
                model_label=model_label,
            )
        )
    return cache


def _store(config: CacheConfig, clock: Clock) -> Store:
    if config.redis and config.enabled:
        return RedisStore.connect(str(config.redis), timeout=config.redis_timeout, clock=clock)
    return SqliteStore(
        config.path if config.enabled else None,
        max_bytes=config.max_bytes,
        max_entries=config.max_entries,
        clock=clock,
    )
