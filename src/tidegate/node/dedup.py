"""The dedup ids that were stored within the deduplication window."""

from __future__ import annotations

from collections.abc import Iterator


class DedupWindow:
    """Dedup ids with the monotonic time at which they were stored, oldest first."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def load(self, ages_s: dict[str, float], now: float) -> None:
        """Add ids that another node or part has stored, `ages_s` seconds ago.

        Of two times of one id the later one counts.
        """
        seen = self._seen
        news: dict[str, float] = {}
        for dedup_id, age_s in ages_s.items():
            if dedup_id not in seen or seen[dedup_id] < now - age_s:
                seen.pop(dedup_id, None)
                news[dedup_id] = now - age_s
        if not news:
            return
        # Most new ids are about as young as the newest known ones. Only these are sorted again.
        oldest = min(news.values())
        while seen and next(reversed(seen.values())) > oldest:
            dedup_id, seen_at = seen.popitem()
            news[dedup_id] = seen_at
        seen.update(sorted(news.items(), key=lambda item: item[1]))

    def has(self, dedup_id: str, now: float, window_s: float) -> bool:
        seen = self._seen.get(dedup_id)
        return seen is not None and now - seen < window_s

    def add(self, dedup_ids: list[str], now: float) -> None:
        for dedup_id in dedup_ids:
            # Removed first, so that the ids stay in order of time.
            self._seen.pop(dedup_id, None)
            self._seen[dedup_id] = now

    def forget(self, now: float, window_s: float) -> None:
        """Remove ids that are older than the window."""
        seen = self._seen
        while seen:
            oldest = next(iter(seen))
            if now - seen[oldest] < window_s:
                return
            del seen[oldest]
