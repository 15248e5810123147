//! Taps: observe, and may replace, the intermediate values of a forward pass.

use crate::checkpoint::{Point, Site, TapScope};
use crate::tensor::Tensor;

/// Observer of the forward pass.
///
/// A tap is called once for every intermediate value, in data-flow order. It returns the value with which the pass
/// continues: the same value to observe only, or another value for teacher forcing or to inject a fault.
pub trait Tap {
    /// Observes `value` and returns the value that the pass continues with.
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor;

    /// Returns true if the tap reads the value at a site. Other values are not passed to the tap, and need not be
    /// computed completely.
    fn wants(&self, _: Site) -> bool {
        true
    }
}

/// Tap that reads nothing and changes nothing.
impl Tap for () {
    fn tap(&mut self, _: Site, value: Tensor) -> Tensor {
        value
    }

    fn wants(&self, _: Site) -> bool {
        false
    }
}

/// Two taps in sequence: the second reads the value that the first returned.
impl<A: Tap, B: Tap> Tap for (A, B) {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let value = self.0.tap(site, value);
        self.1.tap(site, value)
    }

    fn wants(&self, site: Site) -> bool {
        self.0.wants(site) || self.1.wants(site)
    }
}

impl<T: Tap + ?Sized> Tap for &mut T {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        (**self).tap(site, value)
    }

    fn wants(&self, site: Site) -> bool {
        (**self).wants(site)
    }
}

/// Current site of the forward pass. A block names only the tap; the probe adds layer and pass.
pub struct Probe<'t> {
    tap: &'t mut dyn Tap,
    pass: usize,
    layer: usize,
}

impl<'t> Probe<'t> {
    /// Starts pass number `pass`, at layer 0.
    pub fn new(tap: &'t mut dyn Tap, pass: usize) -> Self {
        Self { tap, pass, layer: 0 }
    }

    /// Sets the layer of the following values.
    pub(crate) fn enter_layer(&mut self, layer: usize) {
        self.layer = layer;
    }

    /// Passes `value` to the tap, if the tap reads `point`.
    pub fn tap(&mut self, point: Point, value: Tensor) -> Tensor {
        let site = self.site(point);
        if self.tap.wants(site) { self.tap.tap(site, value) } else { value }
    }

    /// Returns true if the tap reads `point`.
    pub(crate) fn wants(&self, point: Point) -> bool {
        self.tap.wants(self.site(point))
    }

    fn site(&self, point: Point) -> Site {
        let layer = (point.scope() == TapScope::Layer).then_some(self.layer);
        Site { point, layer, pass: Some(self.pass) }
    }
}
