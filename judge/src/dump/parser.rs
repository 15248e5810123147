//! Reads and checks `manifest.json` of every version.

use std::path::{Component, Path};

use serde::Deserialize;

use crate::checkpoint::Point;
use crate::dump::TensorRow;
use crate::dump::manifest::{FORMAT, LATEST, Manifest, VERSION};
use crate::dump::sequences::ManifestV2;
use crate::error::{Error, Result};

impl Manifest {
    /// Reads and checks a manifest. Returns one manifest per sequence. `dump` is the path in error messages.
    ///
    /// # Errors
    /// If the file is not JSON in the form of the dump format, or contradicts itself.
    pub fn parse(json: &[u8], dump: &Path) -> Result<Vec<Self>> {
        let refuse = |problem: String| Error::dump(dump, format!("manifest: {problem}"));
        let kind: FormatVersion = serde_json::from_slice(json).map_err(|error| refuse(error.to_string()))?;
        kind.check().map_err(refuse)?;
        let manifests = match kind.version {
            VERSION => Self::of_version_1(json),
            _ => ManifestV2::taken_apart(
                serde_json::from_slice(json).map_err(|error| refuse(error.to_string()))?,
            ),
        };
        let mut manifests = manifests.map_err(refuse)?;
        for manifest in &mut manifests {
            manifest.leave_out_last_successors();
            let whose = manifest.sequence.iter().map(|name| format!("sequence {name}: ")).collect::<String>();
            manifest
                .check()
                .and_then(|()| manifest.check_files())
                .map_err(|problem| refuse(whose + &problem))?;
        }
        Ok(manifests)
    }

    /// For log-probabilities of next tokens, allows one value fewer than tokens: the token after the last one is
    /// unknown.
    fn leave_out_last_successors(&mut self) {
        for row in self.tensors.iter_mut().filter(|row| row.tap == Point::TokenLogprobs.name()) {
            let Some(pass) = row.pass.and_then(|pass| self.passes.get(pass)) else { continue };
            let before_last = 0..pass.tokens.len().saturating_sub(1);
            let is_one_less = row.shape == [before_last.len()] && !before_last.is_empty();
            if row.rows.is_none() && row.axes.is_none() && is_one_less {
                row.rows = Some(before_last.collect());
            }
        }
    }

    /// Reads a version 1 manifest. Ignores fields of later versions. Rejects 8-bit types, because they need a
    /// scale.
    fn of_version_1(json: &[u8]) -> Result<Vec<Self>, String> {
        let mut manifest: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let mut rows = manifest.tensors.iter().enumerate();
        if let Some((index, row)) = rows.find(|(_, row)| row.dtype().is_ok_and(|dtype| dtype.is_f8())) {
            let TensorRow { file, dtype, .. } = row;
            return Err(format!("tensors[{index}] ({file}): {dtype} needs version 2, but this is version 1"));
        }
        for row in &mut manifest.tensors {
            (row.rows, row.of, row.computed, row.scale, row.step) = (None, None, None, None, None);
        }
        Ok(vec![manifest])
    }

    /// Checks that the files of arrays are inside the dump.
    fn check_files(&self) -> Result<(), String> {
        let place = |(index, row): (usize, &TensorRow)| {
            let is_inside = |row: &TensorRow| check_inside(row.place().0);
            is_inside(row)
                .and_then(|()| row.of_scale().as_ref().map_or(Ok(()), is_inside))
                .map_err(|problem| format!("tensors[{index}] ({}): {problem}", row.file))
        };
        self.tensors.iter().enumerate().try_for_each(place)
    }
}

/// The first fields of a manifest, which identify format and version.
#[derive(Deserialize)]
struct FormatVersion {
    format: String,
    version: u32,
}

impl FormatVersion {
    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("invalid format '{}', expected '{FORMAT}'", self.format));
        }
        if !(VERSION..=LATEST).contains(&self.version) {
            return Err(format!("unsupported version {}, expected {VERSION} to {LATEST}", self.version));
        }
        Ok(())
    }
}

/// Checks that a path stays inside the dump.
fn check_inside(file: &str) -> Result<(), String> {
    let inside = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if inside && !file.is_empty() {
        return Ok(());
    }
    Err(format!("invalid file '{file}', expected a relative path inside the dump"))
}
