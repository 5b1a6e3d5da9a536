"""What a gateway tells of requests: by model, tenant and class, as their clients saw them."""

from prometheus_client.parser import text_string_to_metric_families
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import InProcessGateway, gateway_over, quick, spec_of

from headrace.config.fleet.replicas import Price
from headrace.observe.genai_names import expose_genai
from headrace.observe.prometheus import expose

WHO = ("fake", "anonymous", "standard")


def page(gateway: InProcessGateway) -> dict[tuple[str, ...], float]:
    """Every sample but those of buckets, by its name and label values."""
    parts = gateway.gateway.parts
    parts.requests.write_gauges()
    return {
        (sample.name.removeprefix("headrace_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(expose(parts.metrics))
        for sample in family.samples
        if "_bucket" not in sample.name
    }


async def test_each_request_is_counted_once_by_what_its_client_saw():
    price = Price(input=2.0, output=10.0, cached_input=1.0)
    async with replicas(1) as fakes:
        config = quick([spec_of(fakes[0], price=price)])
        async with gateway_over(fakes, config) as gateway:
            fakes[0].gap = 0.05
            await gateway.ask(max_tokens=5, stream=True)
            fakes[0].gap = 0.0
            await gateway.ask(max_tokens=3)
            fakes[0].faults.append(Fault(status=400))
            await gateway.ask(max_tokens=2)
            fakes[0].faults.append(Fault(hang_at=-1))
            leaving = gateway.call(max_tokens=2, stream=True)
            await gateway.until(lambda: fakes[0].num_running == 1, "it runs")
            leaving.leave()
            await leaving.end()
            told = page(gateway)
            assert told["requests_total", *WHO, "ok"] == 2
            assert told["requests_total", *WHO, "refused"] == 1
            assert told["requests_total", *WHO, "left"] == 1
            assert told["time_to_first_token_seconds_count", *WHO] == 1
            # Tokens that came together with the first one have no pause of their own.
            assert 1 <= told["inter_token_latency_seconds_count", *WHO] <= 4
            assert told["request_time_per_output_token_seconds_count", *WHO] == 1
            assert told["request_duration_seconds_count", *WHO] == 2
            assert told["request_queue_seconds_count", *WHO] == 4
            assert told["tokens_total", *WHO, "output"] == 8
            assert told["tenant_cost_total", "fake", "anonymous"] > 0
            assert told["tokens_per_second", "fake", "output"] > 0
            assert told["cost_per_1000_tokens", "fake"] > 0
            shown = expose_genai(gateway.gateway.parts.metrics)
            assert "gen_ai_client_operation_time_to_first_chunk_seconds_count" in shown
            assert 'le="81.92"' in shown
            assert 'headrace_tenant="anonymous"' in shown


async def test_a_stream_that_breaks_off_for_good_is_no_success():
    async with replicas(1) as fakes:
        config = quick([spec_of(fakes[0])])
        async with gateway_over(fakes, config) as gateway:
            fakes[0].faults.extend([Fault(error_at=200)] * 9)
            await gateway.ask(max_tokens=30, stream=True, n=2)
            told = page(gateway)
            assert told["requests_total", *WHO, "broken"] == 1
            assert ("request_duration_seconds_count", *WHO) not in told
