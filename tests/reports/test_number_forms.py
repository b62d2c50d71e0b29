from __future__ import annotations

import pytest

from gatekeeper.reports import number_forms as forms


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (forms.ratio, 1.6869, "1.69×"),
        (forms.share, 0.5, "50 %"),
        (forms.share, 0.88571, "88.6 %"),
        (forms.share, 0.0, "0 %"),
        (forms.share, 1.0, "100 %"),
        (forms.share, 0.0004, "<0.1 %"),
        (forms.share, 0.99999, ">99.9 %"),
        (forms.signed_share, -0.0123, "−1.23 %"),
        (forms.signed_share, 0.05, "+5 %"),
        (forms.duration, 0.043956, "43.96 ms"),
        (forms.duration, 60.0, "60 s"),
        (forms.duration, 300.0, "5 min"),
        (forms.duration, 86400.0, "24 h"),
        (forms.duration, 7 * 86400.0, "7 d"),
        (lambda value: forms.fixed(value, 4, signed=True), -0.01234567, "−0.0123"),
        (lambda value: forms.fixed(value, 2, signed=True), 0.5, "+0.50"),
        (lambda value: forms.fixed(value, 1), -2.0, "−2.0"),
        (forms.count, 12345.0, "12\u202f345"),
        (forms.per_second, 12.071, "12.1/s"),
        (forms.bytes_, 24.0, "24 B"),
        (forms.bytes_, 754974720.0, "720 MiB"),
        (forms.bytes_, 1189085184.0, "1.11 GiB"),
        (forms.plain, -0.17373, "−0.1737"),
        (forms.money("EUR"), 0.00005, "0.00005 EUR"),
        (forms.money("EUR"), -0.0123456, "−0.01235 EUR"),
        (forms.money("EUR"), 1.633e-13, "<0.000001 EUR"),
        (forms.money("EUR"), -1e-9, ">−0.000001 EUR"),
        (forms.money("EUR"), 0.0, "0 EUR"),
        (forms.amount, 1e9, "1\u202f000\u202f000\u202f000"),
        (forms.plain, 0.000094, "0.000094"),
        (forms.plain, 123456.0, "123\u202f500"),
        (forms.signed_share, 1e-9, "+<0.001 %"),
        (forms.signed_share, 15.24, "+1\u202f520 %"),
        (forms.signed_share, -15.24, "−1\u202f520 %"),
        (forms.per_second, 1234.56, "1\u202f234.6/s"),
        (forms.duration, 1.9, "1\u202f900 ms"),
        (forms.duration, -300.0, "−5 min"),
        (forms.duration, -2 * 86400.0, "−2 d"),
        (forms.signed_share, 0.0, "+0 %"),
        (forms.duration, 1e-12, "<0.000001 ms"),
    ],
)
def test_figures_read_with_their_unit(form: object, value: float, text: str) -> None:
    assert callable(form)
    assert form(value) == text
