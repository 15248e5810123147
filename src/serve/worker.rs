//! Worker: computes accepted sequences in turns.

use rayon::prelude::*;

use crate::serve::App;
use crate::serve::error_response::ErrorResponse;
use crate::serve::job::{SequenceJob, SequenceOutcome};
use crate::serve::queue::SequenceEvent;

/// Computes accepted sequences until shutdown, one token of each running sequence in turn. Each sequence has its
/// own cache and shares no product with others, so its bits are the same as if it ran alone. Only one prompt is
/// read at a time, to limit memory.
pub(crate) fn work(app: &App) {
    let mut running: Vec<SequenceJob> = Vec::new();
    while let Some(orders) = app.queue.next(running.len()) {
        for order in orders {
            let listener = (order.listener.clone(), order.index);
            match SequenceJob::new(&app.served, order) {
                Ok(job) => running.push(job),
                Err(error) => _ = listener.0.send((listener.1, SequenceEvent::Failed(error.into()))),
            }
        }
        if app.queue.is_over() {
            app.queue.give_up();
            running.iter_mut().for_each(|job| job.give_up(ErrorResponse::closing()));
        }
        let reads = running.iter().position(SequenceJob::is_new);
        let steps = |(index, job): &(usize, &mut SequenceJob)| {
            job.outcome().is_none() && (!job.is_new() || Some(*index) == reads)
        };
        running.par_iter_mut().enumerate().filter(steps).for_each(|(_, job)| stepped(app, job));
        running.retain(|job| match job.outcome() {
            Some(outcome) => {
                app.metrics.left(outcome);
                false
            }
            None => true,
        });
    }
}

fn stepped(app: &App, job: &mut SequenceJob) {
    let (was_new, before) = (job.is_new(), job.generated());
    job.step();
    if was_new && job.outcome() != Some(SequenceOutcome::Dropped) {
        app.metrics.prompt_tokens.inc_by(job.prompt_len() as u64);
    }
    app.metrics.generated_tokens.inc_by((job.generated() - before) as u64);
}
