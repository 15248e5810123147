//! A running engine against a dump: a tap that measures as values come, and may teacher-force.

use crate::checkpoint::{Kind, Point, Site};
use crate::compare::align::{aligned, is_visible};
use crate::compare::{Measurement, Selection, measure, measure_tokens};
use crate::dump::{Dump, Values};
use crate::error::{Error, Result};
use crate::tap::Tap;
use crate::tensor::{RopePairing, Tensor};

/// What the forward pass goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continue {
    /// Our own value: errors travel on, as in ordinary use.
    Ours,
    /// The reference's value, where it has one: each stage starts from the reference's own inputs.
    Theirs,
    /// The reference's value where a layer starts, ours inside it: each layer starts from the reference's own
    /// input, and errors travel on to its end.
    TheirsBetweenLayers,
}

impl Continue {
    /// Whether the reference's value takes the place of ours.
    fn replaces(self, point: Point) -> bool {
        match self {
            Continue::Ours => false,
            Continue::Theirs => true,
            Continue::TheirsBetweenLayers => matches!(point, Point::Embed | Point::BlockOut),
        }
    }
}

/// Compares every value with the reference's; nothing is stored but the measurements.
#[derive(Debug)]
pub struct LiveComparison<'d> {
    reference: &'d Dump,
    selection: &'d Selection,
    pairing: Option<RopePairing>,
    go_on: Continue,
    /// Every place the run came by, with what was measured there.
    pub found: Vec<(Site, Option<Measurement>)>,
    error: Option<Error>,
}

impl<'d> LiveComparison<'d> {
    /// Compares with `reference`, brought into our layout of heads.
    pub fn new(
        reference: &'d Dump,
        selection: &'d Selection,
        pairing: Option<RopePairing>,
        go_on: Continue,
    ) -> Self {
        Self { reference, selection, pairing, go_on, found: Vec::new(), error: None }
    }

    /// What was measured, in data-flow order.
    ///
    /// # Errors
    /// The first array that could not be read or has another shape than ours.
    pub fn finish(self) -> Result<Vec<(Site, Option<Measurement>)>> {
        self.error.map_or(Ok(self.found), Err)
    }

    /// Measures `ours`; gives back what is to take its place, if anything is.
    fn compare(&mut self, site: Site, ours: &Tensor) -> Result<Option<Tensor>> {
        let included = self.selection.includes(site);
        let replaces = self.go_on.replaces(site.point);
        let wanted = self.reference.holds(site) && (included || replaces);
        let Some(theirs) = wanted.then(|| self.theirs(site, ours.shape())).transpose()? else {
            self.found.push((site, None));
            return Ok(None);
        };
        let passes = &self.reference.manifest.passes;
        let position = site.pass.map_or(0, |pass| passes[pass].position);
        let visible = |flat: usize| is_visible(site.point, &theirs.shape, position, flat);
        let measurement = included.then(|| match site.point.kind() {
            Kind::Real => measure(&Values::from(ours), &theirs, visible),
            Kind::Token => measure_tokens(&Values::from(ours), &theirs),
        });
        self.found.push((site, measurement));
        Ok(replaces.then(|| replaced(ours, &theirs, visible)))
    }

    fn theirs(&self, site: Site, shape: &[usize]) -> Result<Values> {
        let theirs =
            aligned(self.reference, site, self.pairing)?.expect("the caller asked whether it is held");
        if theirs.shape == shape {
            return Ok(theirs);
        }
        if let (Point::Generated, &[held], &[chosen]) = (site.point, &theirs.shape[..], shape) {
            let problem = format!(
                "generated holds {held} tokens, where its passes choose {chosen}: one after the prompt and one \
                 after each later pass; give every greedy choice in the array and in the manifest, or none"
            );
            return Err(Error::dump(&self.reference.path, problem));
        }
        let problem =
            format!("{site} has shape {:?}, our engine makes {shape:?}; is it of this model?", theirs.shape);
        Err(Error::dump(&self.reference.path, problem))
    }
}

/// The reference's values where they may be looked at; elsewhere they may hold anything.
fn replaced(ours: &Tensor, theirs: &Values, visible: impl Fn(usize) -> bool) -> Tensor {
    let pairs = ours.data().iter().zip(&theirs.data).enumerate();
    let data = pairs.map(|(flat, (&ours, &theirs))| if visible(flat) { theirs as f32 } else { ours });
    Tensor::new(&theirs.shape, data.collect())
}

impl Tap for LiveComparison<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.error.is_some() {
            return value;
        }
        match self.compare(site, &value) {
            Ok(replacement) => replacement.unwrap_or(value),
            Err(error) => {
                self.error = Some(error);
                value
            }
        }
    }
}
