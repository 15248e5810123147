//! Streamed responses: server-sent events, token by token.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::serve::metrics::ActiveRequest;
use crate::serve::queue::SequenceEvent;
use crate::serve::reply::{Reply, ResponsePart};

/// Server-sent events of one answer.
struct EventStream {
    reply: Reply,
    receiver: UnboundedReceiver<(usize, SequenceEvent)>,
    unfinished: usize,
    ready: VecDeque<sse::Event>,
    in_flight: Arc<ActiveRequest>,
}

/// Returns a stream of events as sequences are computed. Dropping the stream stops the computation.
pub(crate) fn streamed(
    reply: Reply,
    receiver: UnboundedReceiver<(usize, SequenceEvent)>,
    sequences: usize,
    in_flight: Arc<ActiveRequest>,
) -> Response {
    let start = EventStream { reply, receiver, unfinished: sequences, ready: VecDeque::new(), in_flight };
    let events = stream::unfold(start, |mut streamed| async move {
        let event = streamed.next().await?;
        Some((Ok::<_, Infallible>(event), streamed))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl EventStream {
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.unfinished == 0 {
                return None;
            }
            let (index, event) = self.receiver.recv().await?;
            self.hear(index, event);
        }
    }

    fn hear(&mut self, index: usize, event: SequenceEvent) {
        let mut part = ResponsePart::of(index);
        if let Err(refusal) = part.add(event) {
            // Without a final [DONE], clients treat the answer as incomplete.
            self.unfinished = 0;
            self.receiver.close();
            self.in_flight.answered(500);
            return self.ready.push_back(written(&refusal.json()));
        }
        let chunk = self.reply.chunk(&part);
        self.ready.extend(chunk.as_ref().map(written));
        if !part.has_ended() {
            return;
        }
        self.unfinished -= 1;
        if self.unfinished == 0 {
            self.ready.extend(self.reply.last_chunk().as_ref().map(written));
            self.ready.push_back(sse::Event::default().data("[DONE]"));
            self.in_flight.answered(200);
        }
    }
}

fn written(document: &Value) -> sse::Event {
    sse::Event::default().data(document.to_string())
}
