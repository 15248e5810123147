//! How far a long run has come: a line on a terminal's standard error, nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

use crate::checkpoint::{Scope, Site};
use crate::tap::Tap;
use crate::tensor::Tensor;

/// A tap that shows where the run is and changes nothing.
pub struct Progress {
    bar: ProgressBar,
    layers: usize,
    at: Option<(usize, usize)>,
}

impl Progress {
    /// For a run of a model with `layers` layers; `what` names the run.
    pub fn new(what: &str, layers: usize) -> Self {
        let bar = ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {prefix}  {msg}  {elapsed}")
                .expect("the template is sound"),
        );
        bar.set_prefix(what.to_owned());
        Self { bar, layers, at: None }
    }
}

impl Tap for Progress {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if let (Some(pass), Some(layer), Scope::Layer) = (site.pass, site.layer, site.point.scope())
            && self.at != Some((pass, layer))
        {
            self.at = Some((pass, layer));
            self.bar.set_message(format!("pass {pass}, layer {} of {}", layer + 1, self.layers));
            self.bar.tick();
        }
        value
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
