//! Computation of one sequence.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::checkpoint::Site;
use crate::engine::{Generation, StopReason, TokenScore};
use crate::error::{Error, Result};
use crate::lazy_bytes;
use crate::numerics::Numerics;
use crate::serve::ServedModel;
use crate::serve::error_response::ErrorResponse;
use crate::serve::queue::{EventSender, SequenceEnd, SequenceEvent, SequenceRequest};
use crate::serve::text::{SequenceText, TokenPiece};
use crate::tap::Tap;
use crate::tensor::Tensor;

/// The step-by-step computation of one sequence. Sends its events to the client.
pub(crate) struct SequenceJob<'s> {
    order: SequenceRequest,
    numerics: &'s dyn Numerics,
    generation: Generation<'s>,
    text: SequenceText<'s>,
    has_read: bool,
    generated: usize,
    outcome: Option<SequenceOutcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceOutcome {
    /// The sequence is complete.
    Finished,
    /// The client has disconnected.
    Dropped,
    /// The computation failed.
    Failed,
}

/// Payload that unwinds a pass when its client has disconnected. It is not a panic, and nothing is printed.
struct ClientDisconnect;

/// A tap that ends a pass when the client has disconnected. It reads no values.
struct DisconnectTap<'l>(&'l EventSender);

impl DisconnectTap<'_> {
    fn check(&self) {
        if self.0.is_closed() {
            resume_unwind(Box::new(ClientDisconnect));
        }
    }
}

impl Tap for DisconnectTap<'_> {
    fn tap(&mut self, _: Site, value: Tensor) -> Tensor {
        value
    }

    fn wants(&self, _: Site) -> bool {
        self.check();
        false
    }
}

impl<'s> SequenceJob<'s> {
    /// Prepares a sequence; nothing is computed yet.
    ///
    /// # Errors
    /// The errors of [`Generation::new`], which were checked before the request was accepted.
    pub(crate) fn new(served: &'s ServedModel, order: SequenceRequest) -> Result<Self> {
        let numerics = &*served.numerics;
        let generation = Generation::new(&*served.loaded.model, numerics, order.request.clone())?;
        let text = SequenceText::new(served.tokenizer.as_deref(), order.stops.clone());
        Ok(Self { order, numerics, generation, text, has_read: false, generated: 0, outcome: None })
    }

    /// Returns true if the prompt has not been read yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.has_read
    }

    /// Returns the outcome, if the sequence has ended.
    pub(crate) fn outcome(&self) -> Option<SequenceOutcome> {
        self.outcome
    }

    /// Returns the number of generated tokens, including an end-of-sequence token.
    pub(crate) fn generated(&self) -> usize {
        self.generated
    }

    /// Returns the number of prompt tokens.
    pub(crate) fn prompt_len(&self) -> usize {
        self.order.request.prompt.len()
    }

    /// Ends the sequence with an error.
    pub(crate) fn give_up(&mut self, why: ErrorResponse) {
        self.order.tell(SequenceEvent::Failed(why));
        self.outcome = Some(SequenceOutcome::Failed);
    }

    /// Reads the prompt or computes the next token, and sends the event. If the client has disconnected, the step ends
    /// before the next layer.
    pub(crate) fn step(&mut self) {
        let stepped = catch_unwind(AssertUnwindSafe(|| lazy_bytes::caught(|| self.advance())));
        self.has_read = true;
        match stepped {
            Ok(Ok(Ok(goes_on))) => self.outcome = (!goes_on).then_some(SequenceOutcome::Finished),
            Ok(Ok(Err(error))) => self.give_up(ErrorResponse::failed(error.to_string())),
            Ok(Err(refused)) => self.give_up(ErrorResponse::failed(Error::Elsewhere(refused).to_string())),
            Err(unwound) if unwound.is::<ClientDisconnect>() => self.outcome = Some(SequenceOutcome::Dropped),
            Err(_) => {
                self.give_up(ErrorResponse::failed("the engine panicked on this request; please report it"))
            }
        }
    }

    /// Reads the prompt or generates a token; returns true if the sequence continues.
    fn advance(&mut self) -> Result<bool> {
        let listener = self.order.listener.clone();
        let mut watch = DisconnectTap(&listener);
        watch.check();
        if !self.has_read {
            let pieces = self.read_prompt(&mut watch)?;
            self.order.tell(SequenceEvent::Prompt(pieces));
        }
        let Some(id) = self.generation.advance_before(&mut watch)? else {
            // The token that ends the text is sent too, with an empty text, because clients expect it.
            if let Some(StopReason::Stop(id)) = self.generation.ending() {
                let piece = self.text.silent(id, self.scored(id)?);
                self.tell_token(piece);
            }
            return self.end();
        };
        let piece = self.text.push(id, self.scored(id)?)?;
        self.tell_token(piece);
        if self.text.has_stopped() || self.generation.ending().is_some() { self.end() } else { Ok(true) }
    }

    fn end(&mut self) -> Result<bool> {
        let text = self.text.finish()?;
        let is_stop =
            self.text.has_stopped() || matches!(self.generation.ending(), Some(StopReason::Stop(_)));
        self.order
            .tell(SequenceEvent::End(SequenceEnd { reason: if is_stop { "stop" } else { "length" }, text }));
        Ok(false)
    }

    fn tell_token(&mut self, piece: TokenPiece) {
        self.generated += 1;
        self.order.tell(SequenceEvent::Token(piece));
    }

    /// Returns the log-probabilities for the last token, if the request wants them.
    fn scored(&self, id: u32) -> Result<Option<TokenScore>> {
        let Some(k) = self.order.scores else { return Ok(None) };
        let logits = self.generation.logits();
        TokenScore::of(self.numerics, &Tensor::new(&[1, logits.len()], logits.to_vec()), id, k).map(Some)
    }

    /// Reads the prompt, and returns its tokens if the request asks for them.
    fn read_prompt(&mut self, watch: &mut DisconnectTap) -> Result<Vec<TokenPiece>> {
        let prompt = self.order.request.prompt.clone();
        // The first token has no log-probability.
        let mut scores = vec![None];
        if let Some(k) = self.order.scores_prompt {
            let (numerics, listener) = (self.numerics, watch.0);
            self.generation.read_prompt(watch, |first, logits| {
                DisconnectTap(listener).check();
                for row in 0..logits.rows() {
                    let Some(&next) = prompt.get(first + row + 1) else { continue };
                    let row = Tensor::new(&[1, logits.row_len()], logits.row(row).to_vec());
                    scores.push(Some(TokenScore::of(numerics, &row, next, k)?));
                }
                Ok(())
            })?;
        }
        let is_wanted = self.order.echo || self.order.scores_prompt.is_some();
        let mut pieces = Vec::new();
        let mut scores = scores.into_iter();
        for &id in &prompt {
            let piece = self.text.read(id, scores.next().flatten())?;
            if is_wanted {
                pieces.push(piece);
            }
        }
        if !self.order.echo {
            self.text.restart();
        }
        Ok(pieces)
    }
}
