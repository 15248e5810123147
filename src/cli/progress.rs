//! How far a long run has come: a line on a terminal's standard error, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::checkpoint::{Scope, Site};
use crate::hub::Watch;
use crate::reference;
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

/// A bar for each file of a download.
pub struct Transfer {
    bar: ProgressBar,
}

impl Transfer {
    /// Shows nothing before the first file.
    pub fn new() -> Self {
        let style = "{prefix}  {bar:24} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is sound");
        Self { bar: ProgressBar::hidden().with_style(style) }
    }
}

impl Watch for Transfer {
    fn file(&mut self, name: &str, bytes: u64, start: u64) {
        let bar = ProgressBar::new(bytes).with_style(self.bar.style()).with_prefix(name.to_owned());
        std::mem::replace(&mut self.bar, bar).finish_and_clear();
        self.bar.set_position(start);
        self.bar.reset_eta(); // what was here before says nothing about the speed
    }

    fn reached(&mut self, bytes: u64) {
        self.bar.set_position(bytes);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// One line for what other programs do, or all that they say.
pub struct Steps {
    bar: ProgressBar,
    is_verbose: bool,
}

impl Steps {
    /// Shows nothing before the first step.
    pub fn new(is_verbose: bool) -> Self {
        let style = ProgressStyle::with_template("{spinner} {prefix}  {elapsed}  {wide_msg}");
        let bar = ProgressBar::hidden().with_style(style.expect("the template is sound"));
        Self { bar, is_verbose }
    }

    /// The next step begins. Where there is no terminal, this line is all that is shown of it.
    pub fn begin(&mut self, what: &str) {
        let bar = ProgressBar::new_spinner().with_style(self.bar.style()).with_prefix(what.to_owned());
        if self.is_verbose || bar.is_hidden() {
            anstream::eprintln!("{what}");
            return;
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        std::mem::replace(&mut self.bar, bar).finish_and_clear();
    }
}

impl reference::Watch for Steps {
    fn line(&mut self, line: &str) {
        match self.is_verbose {
            true => anstream::eprintln!("  {line}"),
            false => self.bar.set_message(line.to_owned()),
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
