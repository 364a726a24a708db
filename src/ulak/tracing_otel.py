"""Traces by OpenTelemetry. Needs the extra `ulak[otel]`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ulak.engine.tracing import Kind, Span

_KINDS = {
    "server": SpanKind.SERVER,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "internal": SpanKind.INTERNAL,
}
_W3C = TraceContextTextMapPropagator()
_HEADER = "traceparent"


class OtelSpan:
    """A span of OpenTelemetry, by our words."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def note(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, why: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, why))


class OtelTracing:
    """Sends an engine's spans to a provider: an `ulak.engine.tracing.Tracing`."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("ulak")

    @contextmanager
    def span(self, name: str, kind: Kind, *, parent: str | None = None) -> Iterator[Span]:
        # Of a parent that cannot be read, the propagator makes none: a trace of its own begins.
        context = None if parent is None else _W3C.extract({_HEADER: parent})
        with self._tracer.start_as_current_span(name, context, _KINDS[kind]) as span:
            yield OtelSpan(span)

    def current(self) -> str | None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get(_HEADER)


def provider_of_program() -> trace.TracerProvider | None:
    """Return the provider that the program has set, None when it has set none."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


def provider_of_environment(exporter: str) -> trace.TracerProvider:
    """Make a provider that exports as the `OTEL_*` variables say, and set it for the process; the
    exporter is `otlp`, over HTTP, or `console`."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    exports: SpanExporter
    if exporter == "console":
        exports = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exports = OTLPSpanExporter()
    # What is still to be sent, it sends when the process ends.
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exports))
    trace.set_tracer_provider(provider)
    return provider
