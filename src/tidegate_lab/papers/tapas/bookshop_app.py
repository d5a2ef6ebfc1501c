"""The bookshop as a web server imports it, with its capacity from the environment."""

from __future__ import annotations

from tidegate_lab.papers.tapas.shops import Bookshop, ShopSetting

app = Bookshop(ShopSetting.of_environment())
