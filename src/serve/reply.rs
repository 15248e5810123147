//! Responses in the format of OpenAI and vLLM, whole or as chunks of a stream.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use crate::engine::TokenScore;
use crate::serve::App;
use crate::serve::error_response::ErrorResponse;
use crate::serve::queue::SequenceEvent;
use crate::serve::request::CompletionOptions;
use crate::serve::text::TokenPiece;

/// Value for negative infinity, which JSON cannot express; the same as in vLLM.
const LEAST: f32 = -9999.0;

/// Route of a completion: plain or chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionKind {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

/// Data that all parts of an answer share.
pub(crate) struct Reply {
    app: Arc<App>,
    kind: CompletionKind,
    /// Options of the request.
    pub(crate) ask: CompletionOptions,
    prompts: Vec<Vec<u32>>,
    id: String,
    created: u64,
    generated: usize,
}

/// Text and tokens of one sequence: a chunk of a stream, or the whole answer.
#[derive(Default)]
pub(crate) struct ResponsePart {
    index: usize,
    /// Prompt tokens, if this part includes them.
    prompt: Option<Vec<TokenPiece>>,
    tokens: Vec<TokenPiece>,
    text: String,
    reason: Option<&'static str>,
}

impl ResponsePart {
    /// Starts an empty part of a sequence.
    pub(crate) fn of(index: usize) -> Self {
        Self { index, ..Self::default() }
    }

    /// Adds an event of the sequence.
    ///
    /// # Errors
    /// If the sequence failed.
    pub(crate) fn add(&mut self, event: SequenceEvent) -> Result<(), ErrorResponse> {
        match event {
            SequenceEvent::Prompt(pieces) => self.prompt = Some(pieces),
            SequenceEvent::Token(piece) => {
                self.text += &piece.text;
                self.tokens.push(piece);
            }
            SequenceEvent::End(end) => {
                self.text += &end.text;
                self.reason = Some(end.reason);
            }
            SequenceEvent::Failed(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Returns true if the sequence has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.reason.is_some()
    }
}

impl Reply {
    /// Starts a response without any sequence results.
    pub(crate) fn new(
        app: &Arc<App>,
        kind: CompletionKind,
        ask: CompletionOptions,
        prompts: Vec<Vec<u32>>,
    ) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let prefix = if kind == CompletionKind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{:x}-{}", since.as_micros(), app.next_number());
        Self { app: app.clone(), kind, ask, prompts, id, created: since.as_secs(), generated: 0 }
    }

    /// Returns the whole response as JSON.
    pub(crate) fn whole(&mut self, parts: &[ResponsePart]) -> Value {
        let choices: Vec<Value> = parts.iter().map(|part| self.choice(part, false)).collect();
        let mut answer = self.frame(false, choices);
        answer["usage"] = self.usage();
        if self.kind == CompletionKind::Chat && self.ask.gives_ids {
            answer["prompt_token_ids"] = json!(self.prompts[0]);
        }
        answer
    }

    /// Returns a chunk of a stream; `None` if the part is empty.
    pub(crate) fn chunk(&mut self, part: &ResponsePart) -> Option<Value> {
        let begins = part.prompt.is_some() && (self.kind == CompletionKind::Chat || self.ask.echo);
        let tells = self.ask.logprobs.is_some() || self.ask.gives_ids;
        let says = begins || !part.text.is_empty() || part.has_ended() || (tells && !part.tokens.is_empty());
        self.generated += if says { 0 } else { part.tokens.len() };
        says.then(|| {
            let choice = self.choice(part, true);
            let mut chunk = self.frame(true, vec![choice]);
            if self.ask.counts {
                chunk["usage"] = Value::Null;
            }
            chunk
        })
    }

    /// Returns the final chunk with token counts, if the request asks for it.
    pub(crate) fn last_chunk(&self) -> Option<Value> {
        self.ask.counts.then(|| {
            let mut chunk = self.frame(true, Vec::new());
            chunk["usage"] = self.usage();
            chunk
        })
    }

    fn frame(&self, is_chunk: bool, choices: Vec<Value>) -> Value {
        let object = match (self.kind, is_chunk) {
            (CompletionKind::Completion, _) => "text_completion",
            (CompletionKind::Chat, false) => "chat.completion",
            (CompletionKind::Chat, true) => "chat.completion.chunk",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.app.served.name,
            "system_fingerprint": self.app.fingerprint(),
            "choices": choices,
        })
    }

    fn usage(&self) -> Value {
        let prompt: usize = self.prompts.iter().map(Vec::len).sum();
        let all = prompt + self.generated;
        json!({"prompt_tokens": prompt, "completion_tokens": self.generated, "total_tokens": all})
    }

    fn choice(&mut self, part: &ResponsePart, is_chunk: bool) -> Value {
        self.generated += part.tokens.len();
        let echoed: &[TokenPiece] = part.prompt.as_deref().filter(|_| self.ask.echo).unwrap_or_default();
        let text: String = echoed.iter().map(|piece| piece.text.as_str()).collect::<String>() + &part.text;
        let told: Vec<&TokenPiece> = echoed.iter().chain(&part.tokens).collect();
        let says_tokens = !is_chunk || !told.is_empty();
        let logprobs = self.ask.logprobs.filter(|_| says_tokens);
        let mut choice = match self.kind {
            CompletionKind::Completion => json!({
                "index": part.index,
                "text": text,
                "logprobs": logprobs.map(|k| self.lists(&told, k)),
            }),
            CompletionKind::Chat => json!({
                "index": part.index,
                "logprobs": logprobs.map(|k| json!({"content": self.entries(&told, k), "refusal": null})),
            }),
        };
        choice["finish_reason"] = json!(part.reason);
        match (self.kind, is_chunk) {
            (CompletionKind::Completion, _) => {}
            (CompletionKind::Chat, false) => {
                choice["message"] = json!({"role": "assistant", "content": text, "refusal": null});
            }
            (CompletionKind::Chat, true) if part.prompt.is_some() => {
                choice["delta"] = json!({"role": "assistant", "content": text});
            }
            (CompletionKind::Chat, true) if text.is_empty() => choice["delta"] = json!({}),
            (CompletionKind::Chat, true) => choice["delta"] = json!({"content": text}),
        }
        self.extend(&mut choice, part);
        choice
    }

    /// Adds vLLM's fields, if the request asks for them.
    fn extend(&self, choice: &mut Value, part: &ResponsePart) {
        if let (Some(k), Some(prompt)) = (self.ask.prompt_logprobs, &part.prompt) {
            choice["prompt_logprobs"] = prompt.iter().map(|piece| self.by_id(piece, k)).collect();
        }
        if self.ask.gives_ids {
            choice["token_ids"] = part.tokens.iter().map(|piece| piece.id).collect();
            if self.kind == CompletionKind::Completion && part.prompt.is_some() {
                choice["prompt_token_ids"] = json!(self.prompts[part.index]);
            }
        }
    }

    /// Returns the log-probabilities in the format of `/v1/completions`.
    fn lists(&self, pieces: &[&TokenPiece], k: usize) -> Value {
        let logprob = |piece: &&TokenPiece| piece.scored.as_ref().map(|scored| number(scored.logprob));
        let top = |piece: &&TokenPiece| {
            let named = self.with_own(piece, k)?.into_iter();
            let mut top = Map::new();
            for (id, logprob) in named {
                // If two ids have the same text, the more likely one is kept.
                top.entry(self.name(id)).or_insert_with(|| number(logprob));
            }
            Some(top)
        };
        json!({
            "tokens": pieces.iter().map(|piece| self.name(piece.id)).collect::<Vec<_>>(),
            "token_logprobs": pieces.iter().map(logprob).collect::<Vec<_>>(),
            "top_logprobs": pieces.iter().map(top).collect::<Vec<_>>(),
            "text_offset": pieces.iter().map(|piece| piece.offset).collect::<Vec<_>>(),
        })
    }

    /// Returns the log-probabilities in the format of `/v1/chat/completions`.
    fn entries(&self, pieces: &[&TokenPiece], k: usize) -> Vec<Value> {
        let entry = |id: u32, logprob: f32| {
            let bytes = self.app.names.bytes(id);
            json!({"token": self.name(id), "logprob": number(logprob), "bytes": bytes})
        };
        let of_piece = |piece: &&TokenPiece| {
            let scored = piece.scored.as_ref()?;
            let mut own = entry(piece.id, scored.logprob);
            own["top_logprobs"] =
                scored.top.iter().take(k).map(|&(id, logprob)| entry(id, logprob)).collect();
            Some(own)
        };
        pieces.iter().filter_map(of_piece).collect()
    }

    /// Returns an entry of vLLM's `prompt_logprobs`.
    fn by_id(&self, piece: &TokenPiece, k: usize) -> Value {
        let Some(scored) = &piece.scored else { return Value::Null };
        let ranked =
            scored.top.iter().take(k).enumerate().map(|(index, &(id, logprob))| (id, logprob, index + 1));
        let own = (piece.id, scored.logprob, scored.rank);
        let entry = |(id, logprob, rank): (u32, f32, usize)| {
            let token = self.app.names.name(id, false);
            (id.to_string(), json!({"logprob": number(logprob), "rank": rank, "decoded_token": token}))
        };
        Value::Object(ranked.chain([own]).map(entry).collect())
    }

    /// Returns the top tokens, and the token itself if it is not among them.
    fn with_own(&self, piece: &TokenPiece, k: usize) -> Option<Vec<(u32, f32)>> {
        let TokenScore { logprob, top, .. } = piece.scored.as_ref()?;
        let mut named: Vec<_> = top.iter().take(k).copied().collect();
        if !named.iter().any(|&(id, _)| id == piece.id) {
            named.push((piece.id, *logprob));
        }
        Some(named)
    }

    fn name(&self, id: u32) -> String {
        self.app.names.name(id, self.ask.names_ids)
    }
}

/// Returns the shortest decimal number that parses to the same `f32`.
fn number(x: f32) -> Value {
    let finite = x.max(LEAST);
    json!(finite.to_string().parse::<f64>().unwrap_or(f64::from(finite)))
}
