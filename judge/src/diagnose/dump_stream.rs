//! Dumps received as a stream of messages. Each message is judged and released before the next one is read.
//!
//! The results of a unit equal those of the complete dump, because a unit reads only its own values and its
//! input. A few bytes per message are kept for checks over the whole dump: recorded taps, hashes of layer
//! inputs, and received units.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use sha2::{Digest, Sha256};

use crate::align::AlignedDump;
use crate::change::ModelOperations;
use crate::check::{Mode, Rules, RunContext};
use crate::checkpoint::{Point, Site};
use crate::diagnose::cross_check::{basis, check_architecture, edge, examine, subject};
use crate::dump::{Dump, Manifest, TensorRow};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::numerics::Numerics;
use crate::plan::{Crossing, MessageStations, Unit, units_of};
use crate::tap::Tap;
use crate::verdict::{
    Basis, ComparisonSubject, Evidence, MissingSite, Outcome, Verdict, conclude, one_sided,
};

/// The judged messages of one dump.
pub struct DumpStream<'s> {
    name: &'s str,
    model: &'s dyn Model,
    numerics: &'s dyn Numerics,
    rules: Rules<'s>,
    operations: Rc<OnceCell<ModelOperations>>,
    told: Option<StreamFacts>,
    portions: Vec<MessageStations>,
    found: Vec<UnitResults>,
    /// SHA-256 of the values received for each range of stations. A station is the embedding, a layer, or the
    /// head.
    pieces: Vec<(Range<usize>, String)>,
    /// SHA-256 of layer inputs, by layer.
    edges: HashMap<usize, String>,
}

/// Facts about the whole dump, collected from its messages.
struct StreamFacts {
    /// Manifest of the first message without arrays. Contains the continuation if any message has one.
    manifest: Manifest,
    subject: ComparisonSubject,
    basis: Basis,
    /// Taps that any message records.
    points: BTreeSet<Point>,
    /// Taps that the messages record, and taps that can be computed from the tokens.
    known: BTreeSet<Point>,
}

/// The results of a unit.
struct UnitResults {
    evidence: Evidence,
    /// Sites that the model computes and whose taps this message does not record. They count as missing if another
    /// message records the tap.
    unheld: Vec<Site>,
}

/// The result of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageResult {
    /// The parts of the model in this message, e.g. "layer 3".
    pub of: String,
    /// True if a comparison fails or is inconclusive, or data is missing.
    pub is_suspect: bool,
}

impl<'s> DumpStream<'s> {
    /// Starts a stream without messages. `name` is the dump's name in reports.
    ///
    /// # Errors
    /// If the rules ask for accumulated errors, which need the whole model at once.
    pub fn new(
        name: &'s str,
        model: &'s dyn Model,
        numerics: &'s dyn Numerics,
        rules: Rules<'s>,
    ) -> Result<Self> {
        if !matches!(rules.mode, Mode::Local | Mode::Layers) {
            return Err(Error::Usage(
                "accumulated errors need a run of the whole model, but a stream is judged message by \
                    message; omit --total, or write the dump to a file"
                    .to_owned(),
            ));
        }
        let (operations, told, edges) = (Rc::default(), None, HashMap::new());
        let (portions, found, pieces) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { name, model, numerics, rules, operations, told, portions, found, pieces, edges })
    }

    /// Returns true if no message was judged.
    pub fn is_empty(&self) -> bool {
        self.portions.is_empty()
    }

    /// Judges a message. `onlooker` sees each value before it is compared.
    ///
    /// # Errors
    /// If the message cannot be judged, or belongs to a different dump than earlier messages. The message is
    /// then ignored.
    pub fn judge(&mut self, dump: &Dump, onlooker: &mut dyn Tap) -> Result<MessageResult> {
        let refuse = |problem: String| Error::dump(&dump.path, problem);
        self.check_manifest(&dump.manifest).map_err(refuse)?;
        check_architecture(self.model, dump)?;
        if let Some(Crossing { within, .. }) = Crossing::of(self.model, &dump.manifest) {
            return Err(refuse(format!(
                "the dump extends beyond position {within}, where LongRoPE's factors change and earlier \
                    tokens are read again; write the dump to a file"
            )));
        }
        let held = AlignedDump::new(dump)?;
        let (read, n_layers) = (held.read_tokens().len(), self.model.dimensions().n_layers);
        self.rules.selection.check(n_layers, held.passes().len(), read)?;
        let (computed, is_first) = (self.numerics.activation_type(), !self.pieces.iter().any(is_first_layer));
        let portion = MessageStations::of(dump, n_layers, computed, is_first).map_err(refuse)?;
        let edges = self.new_edges(&portion, &held)?;
        let mut context = RunContext::new(self.model, self.numerics, &held, self.rules)?;
        context.operations = self.operations.clone();
        let (mut found, mut pieces) = (Vec::new(), Vec::new());
        for piece in portion.pieces() {
            let piece = (piece.clone(), digest(&portion, &piece, dump)?);
            if self.is_known(&piece).map_err(refuse)? {
                continue;
            }
            for unit in portion.units(&piece.0, &dump.manifest, self.rules.selection) {
                let (evidence, visited) = examine(&context, &unit, self.rules, &mut *onlooker)?;
                let unheld = self.unheld(visited, &held, &unit);
                found.push(UnitResults { evidence, unheld });
            }
            pieces.push(piece);
        }
        let judged = MessageResult { of: portion.to_string(), is_suspect: found.iter().any(is_suspect) };
        self.tell(&portion, &context, dump);
        self.edges.extend(edges);
        self.pieces.extend(pieces);
        self.portions.push(portion);
        self.found.extend(found);
        Ok(judged)
    }

    /// Checks that a message belongs to the same dump as the first one. Their manifests must agree, except
    /// for the arrays.
    fn check_manifest(&self, manifest: &Manifest) -> Result<(), String> {
        if manifest.tensors.iter().any(|row| row.sketch) {
            return Err(
                "the message has sketches, from which no layer can be computed; write the dump to a \
                        file"
                    .to_owned(),
            );
        }
        let Some(StreamFacts { manifest: first, .. }) = &self.told else { return Ok(()) };
        // The head was judged with the continuation known at that time, so the continuation must not change
        // afterwards.
        let is_settled = first.generated.is_some() || self.portions.iter().any(MessageStations::has_head);
        let differs = [
            ("producer", manifest.producer != first.producer),
            ("model", shown(&manifest.model) != shown(&first.model)),
            ("layout", manifest.layout != first.layout),
            ("input", shown(&manifest.input) != shown(&first.input)),
            ("passes", manifest.passes != first.passes),
            ("generated", is_settled && manifest.generated != first.generated),
        ];
        let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) else { return Ok(()) };
        let hint = match what {
            "passes" => {
                "; each message must list all passes and contain its layers for all of them; if the passes \
                 come one after another, read the tokens in one pass, or write the dump to a file"
            }
            _ => "",
        };
        Err(format!(
            "the manifest's {what} differs from that of the first message; all messages must belong to one \
                dump{hint}"
        ))
    }

    /// Returns hashes of the inputs of the message's layers. Fails if another message has different values
    /// for a layer's input.
    fn new_edges(&self, portion: &MessageStations, held: &AlignedDump) -> Result<Vec<(usize, String)>> {
        let mut edges = Vec::new();
        for layer in portion.edges() {
            let Some(edge) = edge(held, layer)? else { continue };
            if self.edges.get(&layer).is_some_and(|known| *known != edge) {
                let problem = format!(
                    "{portion}: the input of layer {layer} differs from that in the neighbouring message; \
                     both messages must contain the same block_out"
                );
                return Err(Error::dump(&held.dump.path, problem));
            }
            edges.push((layer, edge));
        }
        Ok(edges)
    }

    /// Returns true if an earlier message had the same layers with bit-identical values. Fails if it had other
    /// values.
    fn is_known(&self, piece: &(Range<usize>, String)) -> Result<bool, String> {
        let meets =
            |known: &&(Range<usize>, String)| known.0.start < piece.0.end && piece.0.start < known.0.end;
        let met: Vec<_> = self.pieces.iter().filter(meets).collect();
        match met.iter().all(|known| *known == piece) {
            true => Ok(!met.is_empty()),
            false => Err(format!("{} came in an earlier message with other values or taps", named(&piece.0))),
        }
    }

    /// Returns the selected sites that the model computes and whose tap this message does not record. They
    /// count as missing if another message records the tap.
    fn unheld(&self, visited: Vec<Site>, held: &AlignedDump, unit: &Unit) -> Vec<Site> {
        let (points, n_layers) = (held.dump.points(), self.model.dimensions().n_layers);
        let selection = self.rules.selection;
        let mut unheld: Vec<Site> = visited
            .into_iter()
            .filter(|site| !points.contains(&site.point) && !held.has_last_row_of(*site))
            .filter(|&site| unit.contains(site, n_layers) && selection.takes(site, &held.positions(site)))
            .collect();
        unheld.sort_by_key(|site| site.flow_order());
        unheld.dedup();
        unheld
    }

    /// Adds a message's facts to those of the whole dump.
    fn tell(&mut self, portion: &MessageStations, context: &RunContext, dump: &Dump) {
        let told = self.told.get_or_insert_with(|| StreamFacts {
            manifest: Manifest { tensors: Vec::new(), ..dump.manifest.clone() },
            subject: subject(self.name, context, self.rules, dump),
            basis: basis(context, self.rules),
            points: BTreeSet::new(),
            known: BTreeSet::new(),
        });
        let points = dump.points();
        told.known.extend(&points);
        told.points.extend(points);
        // Choices of tokens come with the message that contains the head.
        if portion.has_head() {
            told.known.extend(context.held.points());
            told.basis = basis(context, self.rules);
        }
        told.manifest.generated = told.manifest.generated.take().or(dump.manifest.generated.clone());
    }

    /// Ends the stream. Returns the verdict over all messages, and the dump's manifest without arrays. `broken` is the
    /// reason if the stream ended early, so that messages may be missing.
    ///
    /// # Errors
    /// If no message was judged, or a change from `--suppose` has no effect.
    pub fn finish(self, broken: Option<String>) -> Result<(Outcome, Manifest)> {
        let Some(told) = self.told else {
            let problem = broken.unwrap_or_else(|| "the stream is empty: no message was received".to_owned());
            return Err(Error::Usage(format!("{}: {problem}", self.name)));
        };
        let StreamFacts { manifest, subject, basis, points, known } = told;
        let n_layers = self.model.dimensions().n_layers;
        let units = units_of(&self.portions, n_layers, &manifest, self.rules.selection);
        let made: usize = self.found.iter().map(|found| found.evidence.made).sum();
        let mut found: Vec<(usize, Evidence)> = Vec::new();
        for examined in self.found {
            let evidence = examined.completed(&points, &known);
            let number = units.iter().position(|unit| *unit == evidence.unit);
            found
                .push((number.expect("the plan of the whole stream has the unit of each message"), evidence));
        }
        check_supposed(self.rules, made, found.len() == units.len())?;
        let is_there = |number: usize| found.iter().any(|(there, _)| *there == number);
        let absent: Vec<String> = units
            .iter()
            .enumerate()
            .filter(|(n, _)| !is_there(*n))
            .map(|(_, unit)| unit.to_string())
            .collect();
        let why = broken.map(|why| match absent.as_slice() {
            [] => why,
            absent => format!("{why}; not received: {}", absent.join("; ")),
        });
        let mut notes = None;
        match found.last_mut() {
            Some((_, last)) => last.lacking.extend(why),
            // Without results, the verdict cannot be a pass.
            None => notes = why,
        }
        let basis = Basis { wanted: units.into_iter().enumerate().collect(), is_whole: true, ..basis };
        let mut outcome = conclude(subject, basis, found);
        outcome.notes.extend(notes);
        Ok((outcome, manifest))
    }
}

impl UnitResults {
    /// Adds missing sites: sites of taps that other messages record.
    fn completed(self, points: &BTreeSet<Point>, known: &BTreeSet<Point>) -> Evidence {
        let Self { mut evidence, unheld } = self;
        let expected = unheld.into_iter().filter(|site| points.contains(&site.point));
        let missing: Vec<MissingSite> =
            expected.map(|site| MissingSite { site, why: one_sided(site) }).collect();
        evidence.expected += missing.len();
        evidence.missing.extend(missing);
        evidence.missing.sort_by_key(|missing| missing.site.flow_order());
        if let [_, dumped] = evidence.sides.as_mut_slice() {
            dumped.taps = known.clone();
        }
        evidence
    }
}

fn is_suspect(found: &UnitResults) -> bool {
    let Evidence { rows, missing, lacking, .. } = &found.evidence;
    let is_bad = rows.iter().any(|row| matches!(row.verdict, Verdict::Fail | Verdict::Inconclusive));
    is_bad || !missing.is_empty() || !lacking.is_empty()
}

/// Returns the SHA-256 of a message's values at a range of stations: the embedding, layers, or the head.
fn digest(portion: &MessageStations, piece: &Range<usize>, dump: &Dump) -> Result<String> {
    let mut sites: Vec<Site> = dump.sites().filter(|&site| portion.lies_in(site, piece)).collect();
    sites.sort_by_key(|site| site.flow_order());
    let mut hash = Sha256::new();
    for site in sites {
        let told =
            |row: &TensorRow| format!("{site} {} {:?} {:?} {:?}", row.dtype, row.shape, row.axes, row.scale);
        let row = dump.row(site).map(told);
        hash.update(row.unwrap_or_default());
        dump.hash_content(site, &mut hash)?;
    }
    Ok(hex::encode(hash.finalize()))
}

/// Checks that a change from `--suppose` had an effect in at least one message. Skips the check if messages
/// are missing.
fn check_supposed(rules: Rules, made: usize, is_complete: bool) -> Result<()> {
    let [first, ..] = rules.suppositions else { return Ok(()) };
    if made > 0 || !is_complete {
        return Ok(());
    }
    Err(Error::Usage(format!("--suppose {}: no effect in any message", first.change[0])))
}

/// Returns true if a range of stations contains layer 0. Station 0 is the embedding, station 1 is layer 0.
fn is_first_layer((stations, _): &(Range<usize>, String)) -> bool {
    stations.contains(&1)
}

fn named(stations: &Range<usize>) -> String {
    match stations.start.checked_sub(1) {
        None => "the embeddings".to_owned(),
        Some(layer) => format!("the part from layer {layer} on"),
    }
}

fn shown<T: serde::Serialize>(told: &T) -> String {
    serde_json::to_string(told).expect("a manifest is plain data")
}
