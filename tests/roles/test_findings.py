"""What a review of security found, and what became of each finding: the tests that refuse it, or fail without the
mend, and the page that says what stays.

Each line names tests as `file::name`, and what a page says as `page: words of it`. So a finding is closed only as long
as these exist.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..support.rows import case

ROOT = Path(__file__).resolve().parents[2]
THREATS = "docs/explanation/threat-model.md"
PERMISSIONS = "docs/how-to/permissions.md"
ATTACKS = "tests/roles/test_attacks.py"
ACCOUNTS = "tests/roles/test_accounts.py"
FINDINGS: dict[str, tuple[str, ...]] = {
    "C1 storage answers to the API or a worker: streams are deleted, workers drained": (
        f"{ATTACKS}::test_a_producer_cannot_have_storage_answer_to_the_api_or_to_a_worker",
        "tests/roles/test_threat_model.py::test_an_answer_or_an_acknowledgement_is_no_request",
        f"{ACCOUNTS}::test_what_a_tenant_names_as_reply_subject_is_one_of_its_own_account",
        f"{THREATS}: replace any record with an answer from JetStream",
    ),
    "C2 a rollup header wipes the queue or the ledger": (
        f"{ATTACKS}::test_a_producer_of_one_endpoint_can_neither_clear_the_queue_nor_schedule_for_another_endpoint",
        f"{ATTACKS}::test_a_worker_cannot_remove_what_others_wrote_to_the_ledger",
        f"{ATTACKS}::test_a_worker_cannot_remove_what_is_told_of_jobs",
    ),
    "C3 a worker or router makes streams and hears everybody": (
        f"{ATTACKS}::test_a_worker_cannot_have_its_own_record_sent_to_the_api_or_to_another_worker",
        f"{ACCOUNTS}::test_what_a_worker_names_as_reply_subject_is_one_of_its_own_account",
        f"{ACCOUNTS}::test_what_workers_do_not_import_does_not_exist_for_them",
        f"{PERMISSIONS}: Protect the password of a router like that of an operator.",
    ),
    "C4 an acknowledgement as a record ends workers, terms and jobs": (
        f"{ATTACKS}::test_an_acknowledgement_that_is_stored_as_anothers_record_neither_ends_a_job_nor_a_worker",
        "tests/worker/registration/test_registrar.py::test_a_key_that_somebody_overwrote_with_garbage_is_written_again",
        "tests/dispatcher/durable/persistence/test_outcome_store.py"
        "::test_a_result_that_cannot_be_read_is_no_end_of_a_job_and_is_written_over",
        f"{THREATS}: replace any record with an acknowledgement",
    ),
    "H1 an odd header stops a queue": (
        "tests/dispatcher/durable/queue/test_server.py"
        "::test_odd_headers_stop_neither_dead_letters_nor_schedules_nor_strays",
        "tests/dispatcher/durable/persistence/test_outcome_store.py"
        "::test_no_header_and_no_body_keeps_a_task_from_becoming_a_dead_letter",
    ),
    "H2 a megabyte of empty lists stalls a process, and a gateway grows": (
        "tests/schemas/wire/test_codec.py::test_too_many_lists_and_maps_are_refused_and_not_built",
        "tests/schemas/records/test_written_by_hand.py"
        "::test_a_record_with_very_many_values_is_refused_before_it_is_read",
        "tests/dispatcher/gateway/test_gateway.py::test_calls_of_more_bytes_than_may_be_under_way_are_refused_at_once",
        "docs/how-to/share-between-tenants.md: 8 calls with 300,000 empty lists at once",
    ),
    "H3 a worker answers in the place of another": (
        "tests/bus/nats_client/test_request_reply.py::test_who_saw_some_reply_subjects_cannot_guess_another",
        "tests/bus/port/test_conformance.py::test_inboxes_differ_and_cannot_be_guessed",
        "tests/worker/test_service.py::test_a_worker_is_reached_on_its_public_subjects_and_on_those_of_its_channel",
        f"{THREATS}: answer other users' requests, if they know the reply subject",
    ),
    "H4 a hand-written set ends all gangs": (
        "tests/coordinator/ledger/test_hand_written.py"
        "::test_a_record_that_cannot_be_carried_out_is_put_aside_and_the_rest_goes_on",
        "tests/coordinator/ledger/test_hand_written.py::test_a_term_that_could_not_begin_is_given_up_and_tried_again",
        "tests/dispatcher/gangs/test_set_discovery.py::test_what_cannot_be_read_changes_nothing",
    ),
    "H5 a producer of one endpoint reaches others": (
        f"{ATTACKS}::test_a_producer_of_one_endpoint_can_neither_clear_the_queue_nor_schedule_for_another_endpoint",
        f"{ATTACKS}::test_a_producer_of_one_endpoint_cannot_have_its_tasks_run_on_the_pool_of_another",
    ),
    "H6 tokens stand in plain sight": (
        "tests/roles/test_secrets.py::test_what_others_can_read_gives_no_right_to_leases_and_gangs",
        "tests/roles/test_observer.py::test_every_command_that_reads_works_for_an_observer_and_shows_no_token",
        f"{THREATS}: read the arguments of all waiting tasks, and all results",
    ),
    "H7 any worker ends any gang": (
        "tests/roles/test_secrets.py::test_a_worker_reports_only_for_members_that_it_has",
        f"{THREATS}: report progress of any job",
    ),
    "H8 the first comer makes the ledger": (
        f"{ATTACKS}::test_a_ledger_that_somebody_else_made_is_not_used",
        f"{ATTACKS}::test_a_worker_does_not_make_the_ledger",
    ),
    "H9 one user takes everything": (
        "tests/roles/test_quotas.py::test_a_second_gang_waits_and_a_third_is_refused",
        "tests/roles/test_quotas.py::test_calls_of_a_tenant_use_no_more_slots_of_a_pool_than_its_quota",
        "tests/roles/test_quotas.py::test_a_tenant_has_no_more_tasks_of_an_endpoint_than_its_quota_and_another_goes_on",
        "tests/roles/test_quotas.py::test_a_tenant_gets_queues_for_endpoints_without_workers_up_to_its_quota",
        "tests/roles/test_quotas.py::test_priority_is_a_right",
        "tests/roles/test_tenant_turns.py::test_two_tenants_that_each_fill_the_whole_window_start_tasks_in_turn",
        f"{THREATS}: quotas do not bind users of this account",
    ),
    "H10 ids of jobs are first come, first served": (
        "tests/roles/test_secrets.py::test_nobody_elses_job_takes_the_place_of_mine",
        "tests/roles/test_tenants_jobs.py::test_tenants_that_choose_the_same_id_have_a_job_and_a_result_each",
        "tests/roles/test_tenants_jobs.py::test_delayed_tasks_of_the_same_id_do_not_replace_each_other",
        f"{THREATS}: use a `Nats-Msg-Id` that it can guess before its owner does",
    ),
    "M1 open batches keep gangs from being committed": (
        f"{ATTACKS}::test_batches_that_a_worker_keeps_open_delay_a_gang_and_do_not_fail_it",
        f"{THREATS}: keep 50 atomic batches open",
    ),
    "M2 a long traceparent": (
        "tests/coordinator/server/test_observed.py::test_a_traceparent_that_cannot_be_one_is_ignored",
    ),
    "M3 a flood of log lines": (
        "tests/telemetry/test_logs.py::test_a_flood_of_one_kind_of_line_is_cut_and_counted_and_leaves_the_others_alone",
    ),
    "M4 gateways remember names of endpoints": (
        "tests/dispatcher/pools/test_registry.py::test_names_that_nobody_serves_are_forgotten_when_there_are_too_many",
    ),
    "M5 forged lines in a log": (
        "tests/telemetry/test_logs.py::test_a_text_from_outside_cannot_forge_a_line_or_move_the_cursor",
    ),
    "M6 coordinators end at a cold start": (
        "tests/chaos/test_cold_starts.py::test_everybody_starts_beside_a_cluster_that_is_still_electing",
    ),
    "M7 a coordinator leaves because of a crafted map": (
        "tests/coordinator/sharding/test_shards.py"
        "::test_a_map_written_by_hand_does_not_end_the_coordinator_that_is_elected",
    ),
    "M8 silence at a change of leader": (
        "tests/coordinator/server/test_shard_router.py::test_requests_on_their_way_to_a_leader_that_leaves_are_answered",
        "tests/coordinator/test_service.py::test_requests_that_the_only_leader_reads_too_late_are_told_to_ask_again",
        f"{THREATS}: Silence at a change of leader",
    ),
    "M9 an operator of one namespace owns the account": (
        f"{ATTACKS}::test_an_operator_of_one_namespace_cannot_touch_the_streams_of_another",
        f"{THREATS}: An operator of one namespace is an operator of the whole account.",
    ),
    "M10 gateways may purge the ledger and the routes": (
        "docs/reference/permissions.md: | purge the ledger |",
        "docs/reference/permissions.md: | purge the routes |",
    ),
    "M11 the shipped users are shared": (f"{THREATS}: A user shared by several processes is one user.",),
    "M12 compose.yaml has no users": (
        "tests/docker/test_compose_file.py::test_a_server_lets_in_its_users_over_tls_and_nobody_else",
    ),
    "low: tracebacks and arguments in errors": (
        "tests/worker/wire/test_frame_server.py::test_tracebacks_stay_here_when_told_so",
        f"{THREATS}: Errors reveal data.",
    ),
    "low: everybody may import who disconnects": (
        "tests/schemas/permissions/test_nats_config.py::test_only_ganglines_account_is_told_whose_connection_broke",
    ),
    "low: certificates are not users; passwords in plain text": (
        "tests/bus/nats_client/test_connect.py::test_a_password_that_crosses_the_network_in_plain_text_is_told_of",
        f"{THREATS}: Client certificates are not users.",
    ),
    "low: supply chain": (
        "tests/packaging/test_files.py::test_each_dependency_is_locked_to_a_version_that_is_allowed_with_hashes",
        "tests/packaging/test_files.py::test_the_source_distribution_has_the_sources_the_tests_and_the_documentation",
        "SECURITY.md: names its base image by tag",
    ),
}


def test_what_closes_a_finding_is_there():
    for finding in FINDINGS:
        with case(finding):
            for proof in FINDINGS[finding]:
                file, is_test, name = proof.partition("::")
                if is_test:
                    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), proof
                else:
                    page, _, words = proof.partition(": ")
                    assert words in " ".join((ROOT / page).read_text().split()), proof


def test_no_finding_is_left_out():
    kinds = [finding.partition(" ")[0] for finding in FINDINGS]
    wanted = [f"{kind}{number}" for kind, most in (("C", 4), ("H", 10), ("M", 12)) for number in range(1, most + 1)]
    assert kinds == [*wanted, *["low:"] * 4]
