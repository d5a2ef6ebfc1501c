"""The bookshop as a server imports it; what it can do is said by its environment."""

from __future__ import annotations

from tidegate.lab.tapas.bookshop import Bookshop, ShopSetting

app = Bookshop(ShopSetting.of_environment())
