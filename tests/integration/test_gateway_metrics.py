"""What a gateway tells of its replicas."""

from prometheus_client.parser import text_string_to_metric_families
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import InProcessGateway, gateway_over, quick, spec_of

from headrace.config.fleet.gateway import RetryConfig
from headrace.observe.prometheus import expose


def page(gateway: InProcessGateway) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and label values."""
    parts = gateway.gateway.parts
    parts.meter.write_gauges()
    return {
        (sample.name.removeprefix("headrace_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(expose(parts.metrics))
        for sample in family.samples
        if "_bucket" not in sample.name
    }


async def test_tries_retries_and_resumptions_are_counted_where_they_happen():
    async with replicas(2) as fakes:
        config = quick([spec_of(f, id=f"r{i}") for i, f in enumerate(fakes)])
        async with gateway_over(fakes, config) as gateway:
            fakes[0].faults.append(Fault(status=500))
            await gateway.ask(max_tokens=2)  # r0 fails, r1 answers
            fakes[0].faults.append(Fault(cut_at=500))
            await gateway.ask(max_tokens=20, stream=True)  # r0 breaks off, r1 goes on
            fakes[0].faults.append(Fault(status=400))
            await gateway.ask(max_tokens=2)
            fakes[1].faults.append(Fault(hang_at=-1))
            leaving = gateway.call(max_tokens=2)
            await gateway.until(lambda: fakes[1].num_running == 1, "it runs")
            assert page(gateway)["replica_requests_running", "r1"] == 1
            leaving.leave()
            await leaving.end()
            told = page(gateway)
            assert told["replica_requests_total", "r0", "status"] == 1
            assert told["replica_requests_total", "r0", "cut"] == 1
            assert told["replica_requests_total", "r0", "refused"] == 1
            assert told["replica_requests_total", "r1", "ok"] == 2
            assert told["replica_requests_total", "r1", "cancelled"] == 1
            assert told["retries_total", "status"] == 1
            assert told["resumptions_total", "cut"] == 1
            assert told["replica_requests_running", "r1"] == 0
            assert told["replica_time_to_first_token_seconds_count", "r0"] == 1
            assert told["replica_request_duration_seconds_count", "r1"] == 2


async def test_standings_are_told_and_replicas_that_left_are_not():
    async with replicas(2) as fakes:
        specs = [spec_of(f, id=f"r{i}") for i, f in enumerate(fakes)]
        config = quick(specs, retries=RetryConfig(attempts=1))
        async with gateway_over(fakes, config) as gateway:
            await gateway.ask(max_tokens=1)
            await gateway.ask(max_tokens=1)
            fakes[0].is_ready = False
            r0 = gateway.registry.get("r0")
            await gateway.until(lambda: r0.ready_since is None, "it is out")
            told = page(gateway)
            assert told["replica_standing", "r0", "unready"] == 1
            assert told["replica_standing", "r0", "ready"] == 0
            assert told["replica_standing", "r1", "ready"] == 1
            gateway.gateway._sources.replace({})
            gateway.registry.reconcile(specs[1:])
            assert not any("r0" in key for key in page(gateway))
            assert page(gateway)["replica_requests_total", "r1", "ok"] == 1
            fakes[0].is_ready = True
            gateway.registry.reconcile(specs)
            await gateway.ready(2)
