"""uuid, inet, cidr, macaddr, macaddr8, pg_lsn and tid, against what servers wrote and Python's own classes."""

from __future__ import annotations

import ipaddress
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.oracles.recorded import Pair, both, decoded, refused, value_or_fault

TYPES = ["uuid", "inet", "cidr", "macaddr", "macaddr8", "pg_lsn", "tid"]
SIZES = {"uuid": 16, "macaddr": 6, "macaddr8": 8, "pg_lsn": 8, "tid": 6}


@given(st.uuids())
def test_any_uuid_is_written_as_python_does(value: uuid.UUID) -> None:
    assert both("uuid", Pair(str(value).encode(), value.bytes)) == {str(value)}


def packed(interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface, is_cidr: bool) -> bytes:
    """Write the binary form: family 2 or 3, prefix length, flag, address size, address."""
    address = interface.packed
    return bytes([2 if interface.version == 4 else 3, interface.network.prefixlen, is_cidr, len(address)]) + address


interfaces = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)), st.tuples(st.ip_addresses(v=6), st.integers(0, 128))
).map(ipaddress.ip_interface)


@given(interfaces)
def test_any_inet_reads_back_and_has_its_prefix_unless_it_is_whole(interface) -> None:
    (text,) = decoded("inet", [packed(interface, False)], binary=True)
    assert ipaddress.ip_interface(text) == interface
    assert ("/" in text) == (interface.network.prefixlen != interface.max_prefixlen)
    assert decoded("inet", [text.encode()], binary=False) == [text]


@given(interfaces)
def test_any_cidr_reads_back_and_always_has_its_prefix(interface) -> None:
    network = ipaddress.ip_interface((interface.network.network_address, interface.network.prefixlen))
    (text,) = decoded("cidr", [packed(network, True)], binary=True)
    assert ipaddress.ip_network(text) == interface.network
    assert text.endswith(f"/{interface.network.prefixlen}")
    assert decoded("cidr", [text.encode()], binary=False) == [text]


@given(interfaces)
def test_a_cidr_has_no_bits_right_of_its_prefix(interface) -> None:
    if interface.ip != interface.network.network_address:
        assert refused("cidr", packed(interface, True), binary=True) == "BAD_VALUE"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1))
def test_any_tid_is_block_and_offset(block: int, offset: int) -> None:
    form = block.to_bytes(4, "big") + offset.to_bytes(2, "big")
    assert both("tid", Pair(b"(%d,%d)" % (block, offset), form)) == {f"({block},{offset})"}


@given(st.integers(0, 2**64 - 1))
def test_any_pg_lsn_is_two_halves_in_hexadecimal(lsn: int) -> None:
    text = f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
    assert both("pg_lsn", Pair(text.encode(), lsn.to_bytes(8, "big"))) == {text}


@given(st.binary(min_size=6, max_size=6), st.binary(min_size=8, max_size=8))
def test_any_macaddr_is_pairs_of_digits(six: bytes, eight: bytes) -> None:
    assert both("macaddr", Pair(six.hex(":").encode(), six)) == {six.hex(":")}
    assert both("macaddr8", Pair(eight.hex(":").encode(), eight)) == {eight.hex(":")}


@pytest.mark.parametrize(("pg_type", "size"), SIZES.items())
def test_a_fixed_type_has_its_size(pg_type: str, size: int) -> None:
    for length in (0, size - 1, size + 1):
        assert refused(pg_type, bytes(length), binary=True) == "WRONG_SIZE"


# network_recv of utils/adt/network.c rejects each of these.
@pytest.mark.parametrize("pg_type", ["inet", "cidr"])
@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param("", "WRONG_SIZE", id="empty"),
        pytest.param("022000", "WRONG_SIZE", id="cut in the head"),
        pytest.param("02 20 00 04 010203", "WRONG_SIZE", id="one byte short"),
        pytest.param("02 20 00 04 0102030405", "WRONG_SIZE", id="one byte long"),
        pytest.param("03 20 00 04 01020304", "WRONG_SIZE", id="IPv6 of 4 bytes"),
        pytest.param("01 20 00 04 01020304", "BAD_VALUE", id="family 1"),
        pytest.param("0a 20 00 04 01020304", "BAD_VALUE", id="family AF_INET6 of Linux"),
        pytest.param("02 21 00 04 01020304", "BAD_VALUE", id="prefix 33"),
        pytest.param("03 81 00 10" + "00" * 16, "BAD_VALUE", id="prefix 129"),
        pytest.param("02 20 00 10 01020304", "BAD_VALUE", id="size of IPv6"),
    ],
)
def test_an_address_the_server_rejects_is_refused(pg_type: str, form: str, code: str) -> None:
    assert refused(pg_type, bytes.fromhex(form), binary=True) == code


@pytest.mark.parametrize(
    ("pg_type", "text"),
    [
        ("uuid", ""),
        ("uuid", "a0eebc999c0b4ef8bb6d6bb9bd380a11"),
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d16bb9bd380a11"),
        ("inet", ""),
        ("inet", "1"),
        ("inet", "1.2.3.4 "),
        ("inet", "1.2.3.4\0"),
        ("inet", "::" + "0" * 48),
        ("macaddr", "08002b010203"),
        ("macaddr", "08:00:2b:01:02"),
        ("macaddr", "08:00:2b:01:02:0g"),
        ("macaddr8", "08:00:2b:01:02:03"),
        ("pg_lsn", ""),
        ("pg_lsn", "/"),
        ("pg_lsn", "0"),
        ("pg_lsn", "0/"),
        ("pg_lsn", "/0"),
        ("pg_lsn", "0/0/0"),
        ("pg_lsn", "0/a"),
        ("pg_lsn", "123456789/0"),
        ("pg_lsn", "0/123456789"),
        ("tid", "(,)"),
        ("tid", "(1,)"),
        ("tid", "(,1)"),
        ("tid", "(0,1"),
        ("tid", "(0,1,2)"),
        ("tid", "(4294967296,1)"),
        ("tid", "(1,65536)"),
        ("tid", "(-1,1)"),
    ],
)
def test_text_that_is_no_value_is_refused(pg_type: str, text: str) -> None:
    assert refused(pg_type, text.encode(), binary=False) == "BAD_VALUE"


@given(st.sampled_from(TYPES), st.binary(max_size=24), st.booleans())
def test_any_bytes_are_a_value_or_a_fault(pg_type: str, form: bytes, binary: bool) -> None:
    value_or_fault(pg_type, form, binary=binary)
