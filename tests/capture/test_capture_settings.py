"""Settings of a role do not change, hide or end a capture."""

from __future__ import annotations

import contextlib
from pathlib import Path

import cluster
import pytest
import roles

from pgdecode import ChangeDecoder
from pgdecode.capture import StoppedError
from pgdecode.capture.options import PINNED, session_settings
from support import clone
from support.tiers import long

# Settings that a role can set and that need no fixed value, by the reason.
HARMLESS = {
    "they change how a query is planned or how fast it is, not its rows": """
        backend_flush_after compute_query_id constraint_exclusion cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost
        cursor_tuple_fraction debug_discard_caches debug_parallel_query default_statistics_target effective_cache_size
        effective_io_concurrency enable_async_append enable_bitmapscan enable_distinct_reordering enable_gathermerge
        enable_group_by_reordering enable_hashagg enable_hashjoin enable_incremental_sort enable_indexonlyscan
        enable_indexscan enable_material enable_memoize enable_mergejoin enable_nestloop enable_parallel_append
        enable_parallel_hash enable_partition_pruning enable_partitionwise_aggregate enable_partitionwise_join
        enable_presorted_aggregate enable_self_join_elimination enable_seqscan enable_sort enable_tidscan
        force_parallel_mode from_collapse_limit geqo geqo_effort geqo_generations geqo_pool_size geqo_seed
        geqo_selection_bias geqo_threshold hash_mem_multiplier io_combine_limit jit jit_above_cost jit_dump_bitcode
        jit_expressions jit_inline_above_cost jit_optimize_above_cost jit_tuple_deforming join_collapse_limit
        maintenance_io_concurrency maintenance_work_mem max_parallel_maintenance_workers max_parallel_workers
        max_parallel_workers_per_gather min_parallel_index_scan_size min_parallel_table_scan_size
        parallel_leader_participation parallel_setup_cost parallel_tuple_cost plan_cache_mode random_page_cost
        recursive_worktable_factor replacement_sort_tuples seq_page_cost stats_fetch_consistency synchronize_seqscans
        temp_buffers work_mem
    """,
    "the server keeps more or less of a transaction in memory; with streaming, it is cut in other places": """
        logical_decoding_work_mem debug_logical_replication_streaming
    """,
    "they concern what a session writes or creates; a capture writes and creates no rows or tables": """
        allow_in_place_tablespaces allow_system_table_mods check_function_bodies commit_delay commit_siblings
        createrole_self_grant default_table_access_method default_tablespace default_toast_compression
        default_with_oids event_triggers file_copy_method gin_pending_list_limit icu_validation_level
        lo_compat_privileges password_encryption scram_iterations session_replication_role synchronous_commit
        temp_file_limit temp_tablespaces vacuum_buffer_usage_limit vacuum_cleanup_index_scale_factor vacuum_cost_delay
        vacuum_cost_limit vacuum_cost_page_dirty vacuum_cost_page_hit vacuum_cost_page_miss vacuum_failsafe_age
        vacuum_freeze_min_age vacuum_freeze_table_age vacuum_max_eager_freeze_failure_rate
        vacuum_multixact_failsafe_age vacuum_multixact_freeze_min_age vacuum_multixact_freeze_table_age
        vacuum_truncate wal_compression wal_consistency_checking wal_init_zero wal_recycle wal_skip_threshold
    """,
    "they concern how text is read or converted by functions, not how values are written": """
        array_nulls backslash_quote default_text_search_config escape_string_warning gin_fuzzy_search_limit lc_numeric
        lc_time operator_precedence_warning timezone_abbreviations transform_null_equals xmlbinary xmloption
    """,
    "they belong to one transaction, and a new one begins with their defaults, which are pinned": """
        transaction_deferrable transaction_isolation transaction_read_only
    """,
    "they change what the server logs, counts or shows of the session": """
        application_name backtrace_functions debug_pretty_print debug_print_parse debug_print_plan
        debug_print_rewritten log_duration log_error_verbosity log_executor_stats log_lock_failures log_lock_waits
        log_min_duration_sample log_min_duration_statement log_min_error_statement log_min_messages
        log_parameter_max_length log_parameter_max_length_on_error log_parser_stats log_planner_stats
        log_replication_commands log_statement log_statement_sample_rate log_statement_stats log_temp_files
        log_transaction_sample_rate md5_password_warnings trace_notify trace_sort track_activities
        track_cost_delay_timing track_counts track_functions track_io_timing track_wal_io_timing update_process_title
    """,
    "the capture recognises errors by their SQLSTATE, not by their language": "lc_messages",
    "catalogs have no row security, and they are system relations": "row_security restrict_nonsystem_relation_kind",
    "they end only a session whose client has gone, and the capture connects again": """
        client_connection_check_interval deadlock_timeout tcp_keepalives_count tcp_keepalives_idle
        tcp_keepalives_interval
    """,
    "a superuser sets them to load code or to read damaged pages; a wrong value is an error of the server": """
        dynamic_library_path extension_control_path ignore_checksum_failure local_preload_libraries max_stack_depth
        session_preload_libraries zero_damaged_pages
    """,
    "it is raised to a second if it is shorter": "wal_sender_timeout",
    # A fixed value would move the decimal point in a database of another currency.
    "money is written as the database says; a warning names a role that says otherwise": "lc_monetary",
}


def test_settings_that_a_role_can_set_are_pinned_or_known_to_be_harmless(postgres: cluster.Cluster) -> None:
    assert unknown_settings(postgres) == []


def unknown_settings(server: cluster.Cluster) -> list[str]:
    with contextlib.closing(server.connect()) as session:
        rows = session.execute("SELECT lower(name) FROM pg_settings WHERE context IN ('user', 'superuser')")
    known = {name for names in HARMLESS.values() for name in names.split()} | {setting.name for setting in PINNED}
    return sorted(name for [name] in rows if name not in known and "." not in (name or ""))


def test_no_setting_is_both_pinned_and_harmless() -> None:
    names = [name for names in HARMLESS.values() for name in names.split()] + [setting.name for setting in PINNED]
    assert sorted(set(names)) == sorted(names)


def test_the_documentation_lists_the_pinned_settings() -> None:
    text = clone.path_of("docs/capture.md").read_text()
    for setting in PINNED:
        since = f" ({setting.since})" if setting.since > 10 else ""
        value = setting.value or "''"
        assert f"| `{setting.name}`{since} | `{value}` | {setting.why} |" in text


def test_every_pinned_setting_has_a_hostile_value() -> None:
    assert sorted(roles.HOSTILE) == sorted(setting.name for setting in PINNED)
    assert not {name for name, value in roles.HOSTILE.items() if value == session_settings(10**6)[name]}


# Some settings alone, in case one hides the effect of another.
ALONE = ("statement_timeout", "client_encoding", "extra_float_digits")


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [None, *(setting.name if setting.name in ALONE else long(setting.name) for setting in PINNED)]
)
def test_settings_of_a_role_do_not_change_a_capture(
    postgres: cluster.Cluster, tmp_path: Path, name: str | None
) -> None:
    # Source: PowerSync, PeerDB and pg_auto_reindexer reports of captures that a setting of the role had changed.
    with roles.database(postgres) as found:
        settings = roles.hostile_settings(postgres.major)
        if name is not None:
            if name not in settings:
                pytest.skip("the server does not have it")
            settings = {name: settings[name]}
        problems = roles.problems(found, settings, tmp_path)
        assert problems == []


@pytest.mark.full
def test_omitted_changes_end_the_capture_of_a_role_that_hides_warnings(
    postgres: cluster.Cluster, tmp_path: Path
) -> None:
    # Source: https://github.com/sequinstream/sequin/pull/1844
    with roles.database(postgres) as found:
        found.set_role({"client_min_messages": "error"})
        found.captured("careless", tmp_path / "raw")
        found.execute(
            r'DROP PUBLICATION "p\q"',
            "INSERT INTO odd.v (id) VALUES (-1)",
            r'CREATE PUBLICATION "p\q" FOR ALL TABLES',
            "INSERT INTO odd.v (id) VALUES (-2)",
        )
        # PostgreSQL 18 only warns; older servers end the stream.
        with pytest.raises(StoppedError, match=r"omits changes|does not exist"):
            found.captured("careless", tmp_path / "raw")


@pytest.mark.full
def test_a_role_with_its_own_currency_is_named(postgres: cluster.Cluster, tmp_path: Path) -> None:
    with roles.database(postgres) as found:
        found.set_role({"lc_monetary": "C"})
        _, said = found.captured("careless", tmp_path / "raw")
    assert said.startswith("lc_monetary = C is set for the role of the capture")


@pytest.mark.full
def test_values_have_the_form_that_is_documented(postgres: cluster.Cluster, tmp_path: Path) -> None:
    with roles.database(postgres) as found:
        found.set_role(roles.hostile_settings(postgres.major))
        payloads, _ = found.captured("careless", tmp_path / "raw")
    [row] = [dict(new) for new in ChangeDecoder().decode(payloads)["new"].to_pylist() if dict(new).get("id") == "7"]
    assert {name: row[name] for name in "dszibcytma"} == {
        "d": "2020-02-01",
        "s": "2020-02-01 04:05:00",
        "z": "2020-02-01 04:05:00+00",
        "i": "-1 days +02:03:00",
        "b": "\\x00ff",
        "c": "odd.v",
        "y": "odd.mood",
        "t": "café",
        "m": "glad",
        "a": '{"2020-02-01 04:05:00+00"}',
    }
