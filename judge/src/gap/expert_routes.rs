//! Experts that a side chose for each token, layer by layer: routing replay data.
//!
//! vLLM 0.32, SGLang, verl 0.9.1, slime and NeMo-RL store `[tokens, layers, experts]`. The last token, which no forward
//! pass reads, may be missing. -1, or the same expert twice, marks a token without data.

use base64::Engine as _;
use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};

use crate::format::{FileBytes, npy};
use crate::view::View;

/// Marks a token without data.
const MISSING: u16 = u16::MAX;

/// Experts of a sequence's tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertRoutes {
    layers: usize,
    used: usize,
    /// Experts of each token and layer, in ascending order.
    experts: Vec<u16>,
}

impl ExpertRoutes {
    /// Creates routes of `[tokens, layers, experts]`.
    ///
    /// # Errors
    /// If a value is not an index of an expert.
    pub(super) fn of(
        [tokens, layers, used]: [usize; 3],
        ids: impl IntoIterator<Item = f64>,
    ) -> Result<Self, String> {
        let id = |id: f64| match id as u16 {
            found if f64::from(found) == id && found != MISSING => Ok(found),
            _ if id < 0.0 && id.fract() == 0.0 => Ok(MISSING),
            _ => Err(format!("{id}, expected the index of an expert")),
        };
        let mut experts = ids.into_iter().map(id).collect::<Result<Vec<_>, _>>()?;
        let width = layers.checked_mul(used).filter(|&width| width > 0);
        if width.and_then(|width| tokens.checked_mul(width)) != Some(experts.len()) {
            return Err(format!("shape [{tokens}, {layers}, {used}], expected [tokens, layers, experts]"));
        }
        for chosen in experts.chunks_mut(used) {
            chosen.sort_unstable();
            if chosen.windows(2).any(|both| both[0] == both[1]) {
                chosen.fill(MISSING);
            }
        }
        Ok(Self { layers, used, experts })
    }

    /// Reads the text in which vLLM sends routes: an `.npy` file in base64.
    ///
    /// # Errors
    /// If the text is not base64 of such a file.
    pub(super) fn of_text(text: &str) -> Result<Self, String> {
        let expected = "expected lists [token][layer][expert], or such an .npy file in base64; convert SGLang's text, which has no shape: \
                        np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, layers, experts).tolist()";
        let bytes = base64::engine::general_purpose::STANDARD.decode(text);
        let bytes = bytes.map_err(|_| format!("text that is not base64, {expected}"))?;
        let source = FileBytes { path: "routed_experts".into(), data: bytes.into() };
        let stored = npy::read(&source, None).map_err(|_| format!("base64 without a shape, {expected}"))?;
        let view = View::stored(&stored.shape, stored.dtype, stored.data);
        let shape = <[usize; 3]>::try_from(stored.shape).ok();
        match view.zip(shape) {
            Some((view, shape)) => Self::of(shape, view.to_vec()),
            None => Err(format!("an array of another shape or type, {expected}")),
        }
    }

    /// Returns the number of choices of all tokens and layers.
    pub(super) fn len(&self) -> usize {
        self.experts.len()
    }

    /// Returns the number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.experts.len() / self.width()
    }

    /// Returns the number of layers with experts, and the number of experts that each token chooses.
    pub fn shape(&self) -> [usize; 2] {
        [self.layers, self.used]
    }

    fn width(&self) -> usize {
        self.layers * self.used
    }

    /// Appends the routes of later tokens.
    ///
    /// # Errors
    /// If the numbers of layers or of experts differ.
    pub(super) fn append(&mut self, later: &Self) -> Result<(), String> {
        if self.shape() != later.shape() {
            return Err(format!("{:?} layers and experts, expected {:?}", later.shape(), self.shape()));
        }
        self.experts.extend_from_slice(&later.experts);
        Ok(())
    }

    /// Removes the padding after the last token.
    pub(super) fn truncate(&mut self, tokens: usize) {
        self.experts.truncate(tokens.saturating_mul(self.width()));
    }

    /// Returns the experts of a token in a layer, in ascending order; `None` without data.
    pub fn chosen(&self, token: usize, layer: usize) -> Option<&[u16]> {
        let start = token.checked_mul(self.width())?.checked_add(layer * self.used)?;
        self.experts.get(start..start + self.used).filter(|chosen| !chosen.contains(&MISSING))
    }
}

impl<'de> Deserialize<'de> for ExpertRoutes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RoutesVisitor)
    }
}

struct RoutesVisitor;

impl<'de> Visitor<'de> for RoutesVisitor {
    type Value = ExpertRoutes;

    fn expecting(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        to.write_str("lists [token][layer][expert]")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ExpertRoutes, E> {
        ExpertRoutes::of_text(text).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ExpertRoutes, A::Error> {
        let (mut shape, mut ids) = ([0, 0, 0], Vec::new());
        while let Some(token) = list.next_element::<Vec<Vec<i64>>>()? {
            let used = token.first().map_or(0, Vec::len);
            let is_first = shape[0] == 0;
            if is_first {
                shape = [0, token.len(), used];
            }
            if token.len() != shape[1] || token.iter().any(|layer| layer.len() != shape[2]) {
                let token = shape[0];
                return Err(A::Error::custom(format!("token {token} has another shape than token 0")));
            }
            shape[0] += 1;
            ids.extend(token.into_iter().flatten().map(|id| id as f64));
        }
        ExpertRoutes::of(shape, ids).map_err(A::Error::custom)
    }
}
