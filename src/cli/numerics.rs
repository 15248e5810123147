//! Choice of the numerics that reproduce a reference.

use clap::{Args, ValueEnum};

use crate::cli::options::value_name;
use crate::dump::Producer;
use crate::engine;
use crate::error::{Error, Result};
use crate::model::{LoadedModel, Model};
use crate::numerics::{
    ActivationQuantisation, BitnetCpp, CacheOverride, F32, KvType, Llama2C, LlamaCpp, LlamaCppFlash,
    Numerics, PLAIN, Transformers,
};
use crate::quant::{ActivationCodes, CACHES};
use crate::weight::DType;

/// Field of `producer.rounding` with the integer type of activations.
pub(super) const ACTIVATION_CODES: &str = "activation_codes";

/// Options for the arithmetic.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct NumericsOptions {
    /// Arithmetic to compute with
    ///
    /// `auto` follows the engine and settings that the dump states. Without a dump, `dump`, `generate` and
    /// `serve` compute quantised weights as they are stored, as an engine of the file format does (llama.cpp,
    /// bitnet.cpp, llama2.c or transformers). `selfcheck` tests both f32 and the engine of the file format.
    /// Other commands compute in f32 if there is no dump.
    #[arg(long, value_enum, default_value_t = NumericsOption::Auto, help_heading = "Arithmetic")]
    numerics: NumericsOption,
    /// Dtype for --numerics transformers [default: the dump's, else f32]
    ///
    /// Weights and activations are rounded to this type.
    #[arg(long, value_enum, help_heading = "Arithmetic")]
    dtype: Option<TorchDtype>,
    /// Type of the KV cache [default: the dump's, else as the numerics do]
    ///
    /// Keys and values are rounded to this type.
    #[arg(long, value_enum, value_name = "TYPE", help_heading = "Arithmetic")]
    kv_cache: Option<CacheDtype>,
    /// Fail instead of decoding quantised weights to floating point
    #[arg(long, help_heading = "Arithmetic")]
    strict: bool,
}

impl NumericsOptions {
    /// Returns the numerics to compare a model with a reference; `None` as producer for a run without a
    /// reference.
    ///
    /// # Errors
    /// - If the reference was made with a setting that cannot be reproduced.
    /// - If options contradict each other.
    /// - If a weight would be decoded although `--strict` is given.
    pub(crate) fn of(&self, model: &dyn Model, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        if self.dtype.is_some() && self.numerics != NumericsOption::Transformers {
            return Err(Error::Usage("--dtype needs --numerics transformers".into()));
        }
        self.strictly(model, self.built(producer)?)
    }

    /// Returns the numerics to run a model without a reference. By default, quantised weights are used as
    /// they are stored.
    ///
    /// # Errors
    /// The errors of [`NumericsOptions::of`].
    pub(crate) fn of_stored(&self, loaded: &LoadedModel) -> Result<Box<dyn Numerics>> {
        let model = &*loaded.model;
        let is_open = self.numerics == NumericsOption::Auto && self.dtype.is_none();
        let is_quantised = !engine::decoded(model, &F32).is_empty();
        let stored = is_open.then(|| NumericsOption::for_format(loaded.format)).filter(|_| is_quantised);
        let computes = |choice: &NumericsOption| {
            let options = Self { numerics: *choice, ..self.clone() };
            options.built(None).is_ok_and(|numerics| engine::decoded(model, &*numerics).is_empty())
        };
        match stored.into_iter().flatten().copied().find(computes) {
            Some(choice) => Self { numerics: choice, ..self.clone() }.of(model, None),
            None => self.of(model, None),
        }
    }

    /// Returns the numerics, or an error if `--strict` is given and they would decode quantised weights, or if they round
    /// the weights of a merged adapter.
    fn strictly(&self, model: &dyn Model, numerics: Box<dyn Numerics>) -> Result<Box<dyn Numerics>> {
        let dtype = numerics.activation_type();
        if model.has_adapter() && dtype != DType::F32 {
            return Err(Error::Usage(format!(
                "a model with a LoRA adapter is judged in f32 only, not in {dtype}: engines that keep the adapter apart \
                 round otherwise than those that merge it; use a run in f32, or a model merged with peft's merge_and_unload"
            )));
        }
        let (kv, rows) = (numerics.cache_type(), model.dimensions().cached_rows());
        if let Some(width) = rows.into_iter().find(|width| !width.is_multiple_of(kv.block_len())) {
            return Err(Error::Usage(format!(
                "a {kv} KV cache needs heads of a multiple of {} values, and this model has {width}; use another \
                 --kv-cache",
                kv.block_len()
            )));
        }
        if self.strict {
            engine::check_native(model, &*numerics)?;
        }
        Ok(numerics)
    }

    /// Returns the possible numerics of a dump, and whether they are known. They are unknown in two cases: the producer
    /// is unknown and does not state its arithmetic for quantised weights; or neither our files nor our numerics have
    /// the dump's weight type or dtype.
    ///
    /// # Errors
    /// The errors of [`NumericsOptions::of`].
    pub(crate) fn of_dump(
        &self,
        model: &dyn Model,
        producer: &Producer,
    ) -> Result<(Vec<Box<dyn Numerics>>, bool)> {
        let (stated, has_its_cache) = self.built_for(producer)?;
        let llama_cpp = LlamaCpp::default();
        let is_native = |dtype| llama_cpp.native_types().contains(&dtype) && !PLAIN.contains(&dtype);
        let quantised = model.matrices().into_iter().any(|(_, matrix)| is_native(matrix.dtype));
        let says = producer.setting("numerics").is_some() || NumericsOption::named(&producer.name).is_some();
        let has_codes =
            producer.rounding.as_ref().is_some_and(|rounding| rounding.contains_key(ACTIVATION_CODES));
        let is_settled = self.numerics != NumericsOption::Auto || says || has_codes;
        if is_settled || !quantised || stated.activation_type() != DType::F32 {
            // No supported file has 8-bit integers without a scale per block.
            let is_known = (producer.stated_dtype().is_none() || producer.dtype().is_some())
                && producer.precision() != Some(DType::I8.name());
            let has_scales = stated.cache_type() == DType::F8_E4M3
                && model.matrices().into_iter().any(|(_, matrix)| matrix.cache_scales().is_some());
            let of_unknown_scale = if has_scales { None } else { self.of_unknown_scale(producer)? };
            let choices = [Some(self.strictly(model, stated)?), of_unknown_scale];
            return Ok((choices.into_iter().flatten().collect(), has_its_cache && (is_settled || is_known)));
        }
        let as_ggml = LlamaCpp { kv: KvType::of(stated.cache_type()).unwrap_or_default() };
        match self.strict {
            true => Ok((vec![self.strictly(model, Box::new(as_ggml))?, Box::new(LlamaCppFlash::NEW)], false)),
            false => Ok((vec![stated, Box::new(as_ggml), Box::new(LlamaCppFlash::NEW)], false)),
        }
    }

    /// Returns the numerics that a GGUF file of unquantised weights suggests for an engine that states nothing: those
    /// of llama.cpp, which many programs embed. Empty if options or the producer determine the numerics.
    ///
    /// # Errors
    /// The errors of [`NumericsOptions::of`].
    pub(crate) fn of_gguf(&self, model: &dyn Model, producer: &Producer) -> Result<Vec<Box<dyn Numerics>>> {
        let (said, _) = self.of_dump(model, producer)?;
        let is_said = producer.setting("numerics").or(producer.stated_dtype()).is_some()
            || producer.cache_type().is_some_and(|kv| kv != DType::F16);
        let is_open = !self.is_named() && !is_said;
        let is_plain_f32 = matches!(&said[..], [one] if one.name() == F32.name());
        if self.strict || !is_open || !is_plain_f32 || NumericsOption::named(&producer.name).is_some() {
            return Ok(Vec::new());
        }
        let with_cache = |kv| [Box::new(LlamaCppFlash::NEW) as Box<dyn Numerics>, Box::new(LlamaCpp { kv })];
        Ok(self.kv_type(Some(producer)).map_or(Vec::new(), |kv| with_cache(kv).into()))
    }

    /// Returns the numerics with a stated or requested 8-bit cache of unknown scales.
    fn of_unknown_scale(&self, producer: &Producer) -> Result<Option<Box<dyn Numerics>>> {
        let asked = self.kv_cache.map(CacheDtype::dtype);
        let Some(kv) = asked.or_else(|| producer.cache_type()) else { return Ok(None) };
        let mut plain = producer.clone();
        plain.settings.remove("kv_cache");
        let options = Self { kv_cache: None, ..self.clone() };
        Ok(CacheOverride::of_unknown_scale(options.built(Some(&plain))?, kv))
    }

    /// Returns the numerics for a dump, and true if they have the dump's KV cache type. If no numerics support the
    /// dump's 8-bit cache, the default cache is used.
    fn built_for(&self, producer: &Producer) -> Result<(Box<dyn Numerics>, bool)> {
        match self.built(Some(producer)) {
            Err(_) if producer.has_eight_bit_cache() && self.kv_cache.is_none() => {
                let mut other = producer.clone();
                other.settings.remove("kv_cache");
                Ok((self.built(Some(&other))?, false))
            }
            built => Ok((built?, true)),
        }
    }

    fn built(&self, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        let choice = match self.numerics {
            NumericsOption::Auto => NumericsOption::of(producer)?,
            named => named,
        };
        self.with_codes(self.plain(choice, producer)?, producer)
    }

    /// Returns numerics with 8-bit activations, if the reference states them.
    fn with_codes(&self, own: Box<dyn Numerics>, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        let codes = producer.and_then(|producer| producer.rounding.as_ref()?.get(ACTIVATION_CODES));
        let Some(codes) = codes.filter(|codes| !codes.is_null()) else { return Ok(own) };
        let codes: ActivationCodes = serde_json::from_value(codes.clone())
            .map_err(|problem| Error::Usage(format!("producer.rounding: {ACTIVATION_CODES}: {problem}")))?;
        match codes.problem() {
            Some(problem) => Err(Error::Usage(format!("producer.rounding: {problem}"))),
            None => Ok(Box::new(ActivationQuantisation::over(own, codes))),
        }
    }

    fn plain(&self, choice: NumericsOption, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        let own: Box<dyn Numerics> = match choice {
            NumericsOption::LlamaCpp if !has_flash_attention(producer) => {
                return Ok(Box::new(LlamaCpp { kv: self.kv_type(producer)? }));
            }
            NumericsOption::LlamaCpp | NumericsOption::LlamaCppFlash => {
                return Ok(Box::new(self.flash(producer)?));
            }
            NumericsOption::BitnetCpp => return Ok(Box::new(BitnetCpp { kv: self.kv_type(producer)? })),
            NumericsOption::Llama2C => return self.llama2_c(producer),
            NumericsOption::Transformers => Box::new(self.transformers(producer)?),
            NumericsOption::F32 | NumericsOption::Auto => Box::new(F32),
        };
        self.with_cache(own, producer)
    }

    /// Returns the requested dtype, otherwise the dtype in the reference's settings, otherwise f32. A
    /// reference in f64 is reproduced in f32.
    fn transformers(&self, producer: Option<&Producer>) -> Result<Transformers> {
        if let Some(asked) = self.dtype {
            return Ok(asked.numerics());
        }
        let stated = producer.and_then(|producer| Some((producer, producer.stated_dtype()?)));
        let Some((producer, stated)) = stated else { return Ok(Transformers::F32) };
        match producer.dtype().map(|dtype| dtype.name()) {
            Some("f32" | "f64") => Ok(Transformers::F32),
            Some("bf16") => Ok(Transformers::Bf16),
            Some("f16") => Ok(Transformers::F16),
            _ => Err(Error::Usage(format!(
                "the dump has dtype {stated}, expected f32, bf16 or f16; choose one with --numerics \
                 transformers --dtype"
            ))),
        }
    }

    /// Returns the KV cache type of llama.cpp and bitnet.cpp; llama.cpp's default if not stated.
    fn kv_type(&self, producer: Option<&Producer>) -> Result<KvType> {
        if let Some(asked) = self.kv_cache {
            return KvType::of(asked.dtype()).ok_or_else(|| unknown_cache(&value_name(&asked), PLAIN_CACHES));
        }
        let Some((producer, stated)) = stated(producer, "kv_cache") else { return Ok(KvType::default()) };
        producer.cache_type().and_then(KvType::of).ok_or_else(|| unknown_cache(stated, PLAIN_CACHES))
    }

    /// Returns the numerics of llama.cpp's flash attention. With a cache of blocks, newer versions transform queries,
    /// keys and values, unless the head size or a setting prevents it. A dump must therefore state if they were
    /// transformed.
    fn flash(&self, producer: Option<&Producer>) -> Result<LlamaCppFlash> {
        let rotation = stated(producer, "attention_rotation").map(|(_, rotation)| rotation);
        let is_open = |kv| CACHES.contains(&kv) && !matches!(rotation, Some("on" | "off"));
        let (kv, name) = match (self.kv_cache, stated(producer, "kv_cache")) {
            (Some(asked), _) => (Some(asked.dtype()), value_name(&asked)),
            (None, Some((producer, stated))) => {
                (producer.cache_type().filter(|&kv| !is_open(kv)), stated.to_owned())
            }
            (None, None) => return Ok(LlamaCppFlash::NEW),
        };
        let known = "f16, f32, or q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl with \"attention_rotation\": \"on\" or \"off\" in its settings";
        let numerics = kv.and_then(LlamaCppFlash::of).ok_or_else(|| unknown_cache(&name, known))?;
        Ok(numerics.rotated(rotation == Some("on")))
    }

    /// Returns the numerics of llama2.c, whose KV cache is always f32.
    fn llama2_c(&self, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        match self.kv_type(producer)? {
            KvType::F16 if self.kv_cache.is_some() || stated(producer, "kv_cache").is_some() => Err(
                Error::Usage("llama2.c has an f32 KV cache; use --kv-cache f32 or other --numerics".into()),
            ),
            _ => Ok(Box::new(Llama2C)),
        }
    }

    /// Returns numerics that support every cache type, with the requested type, or otherwise the reference's type.
    fn with_cache(&self, own: Box<dyn Numerics>, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        let (kv, name) = match (self.kv_cache, stated(producer, "kv_cache")) {
            (Some(asked), _) => (Some(asked.dtype()), value_name(&asked)),
            (None, Some((producer, stated))) => (producer.cache_type(), stated.to_owned()),
            (None, None) => return Ok(own),
        };
        kv.and_then(|kv| CacheOverride::over(own, kv))
            .ok_or_else(|| unknown_cache(&name, "f32, f16, bf16, f8_e4m3, f8_e5m2 and int8"))
    }

    /// Returns true if the user gave the type of the KV cache.
    pub(crate) fn names_cache(&self) -> bool {
        self.kv_cache.is_some()
    }

    /// Returns true if the user named an arithmetic.
    pub(crate) fn is_named(&self) -> bool {
        self.numerics != NumericsOption::Auto || self.dtype.is_some() || self.kv_cache.is_some()
    }

    /// Returns the arguments that choose the same numerics again.
    pub(crate) fn words(&self) -> Vec<String> {
        let numerics = Some(self.numerics).filter(|numerics| *numerics != NumericsOption::Auto);
        let options = [
            ("--numerics", numerics.as_ref().map(value_name)),
            ("--dtype", self.dtype.as_ref().map(value_name)),
            ("--kv-cache", self.kv_cache.as_ref().map(value_name)),
        ];
        let given = options.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value?]));
        given.flatten().chain(self.strict.then(|| "--strict".to_owned())).collect()
    }
}

/// Numerics by name, or `auto` for the ones that fit the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum NumericsOption {
    /// Chosen from the engine and settings that the dump states
    #[default]
    Auto,
    /// Decoded weights, f32 activations
    F32,
    /// llama.cpp on x86-64 without flash attention: activations rounded as in ggml
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// llama.cpp on x86-64 with flash attention, its default: values summed in f16
    #[value(name = "llama.cpp-flash")]
    LlamaCppFlash,
    /// bitnet.cpp on x86-64: 8-bit activations per token for ternary weights
    #[value(name = "bitnet.cpp")]
    BitnetCpp,
    /// Eager transformers models: rounded where torch rounds, in the dump's dtype
    Transformers,
    /// run.c and runq.c of llama2.c: f32 sums in column order, int8 groups
    #[value(name = "llama2.c")]
    Llama2C,
}

impl NumericsOption {
    /// Returns the numerics of the engines that use a file format, in the order to try them.
    fn for_format(format: &str) -> &'static [Self] {
        match format {
            "gguf" => &[Self::LlamaCpp, Self::BitnetCpp],
            "llama2.c" => &[Self::Llama2C],
            _ => &[Self::Transformers],
        }
    }

    /// Returns all numerics except `auto`.
    fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|choice| *choice != NumericsOption::Auto)
    }

    /// Returns the numerics that reproduce a reference. Settings take precedence: named numerics, as in dumps by
    /// xcheck, or a torch dtype of activations. Otherwise the producer's name decides.
    ///
    /// # Errors
    /// If the settings name numerics that are not known.
    fn of(producer: Option<&Producer>) -> Result<Self> {
        let Some(producer) = producer else { return Ok(NumericsOption::F32) };
        if let Some(name) = producer.setting("numerics") {
            return Self::named(name).ok_or_else(|| unknown_numerics(name));
        }
        if matches!(producer.dtype().map(|dtype| dtype.name()), Some("bf16" | "f16")) {
            return Ok(NumericsOption::Transformers);
        }
        Ok(Self::named(&producer.name).unwrap_or(NumericsOption::F32))
    }

    fn named(name: &str) -> Option<Self> {
        Self::all().find(|choice| value_name(choice) == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TorchDtype {
    /// Single precision
    F32,
    /// bfloat16
    Bf16,
    /// Half precision
    F16,
}

impl TorchDtype {
    /// Returns the name in dumps and in the options of engines.
    pub(crate) fn name(self) -> &'static str {
        self.numerics().activation_type().name()
    }

    fn numerics(self) -> Transformers {
        match self {
            TorchDtype::F32 => Transformers::F32,
            TorchDtype::Bf16 => Transformers::Bf16,
            TorchDtype::F16 => Transformers::F16,
        }
    }
}

/// The element type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheDtype {
    /// Single precision
    F32,
    /// Half precision
    F16,
    /// bfloat16
    Bf16,
    /// 8-bit float with a 3-bit mantissa
    #[value(name = "f8_e4m3")]
    E4m3,
    /// 8-bit float with a 2-bit mantissa
    #[value(name = "f8_e5m2")]
    E5m2,
    /// 8-bit integers, with a scale for each head of a token
    Int8,
    /// llama.cpp's blocks of 32 8-bit codes, with flash attention
    #[value(name = "q8_0")]
    Q8_0,
    /// llama.cpp's blocks of 32 5-bit codes with a minimum, with flash attention
    #[value(name = "q5_1")]
    Q5_1,
    /// llama.cpp's blocks of 32 5-bit codes, with flash attention
    #[value(name = "q5_0")]
    Q5_0,
    /// llama.cpp's blocks of 32 4-bit codes with a minimum, with flash attention
    #[value(name = "q4_1")]
    Q4_1,
    /// llama.cpp's blocks of 32 4-bit codes, with flash attention
    #[value(name = "q4_0")]
    Q4_0,
    /// llama.cpp's blocks of 32 indices into a table of 16 values, with flash attention
    #[value(name = "iq4_nl")]
    Iq4Nl,
}

impl CacheDtype {
    fn dtype(self) -> DType {
        match self {
            CacheDtype::F32 => DType::F32,
            CacheDtype::F16 => DType::F16,
            CacheDtype::Bf16 => DType::BF16,
            CacheDtype::E4m3 => DType::F8_E4M3,
            CacheDtype::E5m2 => DType::F8_E5M2,
            CacheDtype::Int8 => DType::I8,
            CacheDtype::Q8_0 => DType::Q8_0,
            CacheDtype::Q5_1 => DType::Q5_1,
            CacheDtype::Q5_0 => DType::Q5_0,
            CacheDtype::Q4_1 => DType::Q4_1,
            CacheDtype::Q4_0 => DType::Q4_0,
            CacheDtype::Iq4Nl => DType::IQ4_NL,
        }
    }
}

/// Returns the names of KV cache types smaller than `f32` that all numerics support, as in a dump's settings.
pub(super) fn short_caches() -> impl Iterator<Item = String> {
    let is_short = |cache: &&CacheDtype| **cache != CacheDtype::F32 && !CACHES.contains(&cache.dtype());
    CacheDtype::value_variants().iter().filter(is_short).map(value_name)
}

/// Cache types of numerics without flash attention.
const PLAIN_CACHES: &str = "f16 and f32 (--numerics llama.cpp-flash has more)";

/// Returns the reference's setting under a key.
fn stated<'p>(producer: Option<&'p Producer>, key: &str) -> Option<(&'p Producer, &'p str)> {
    producer.and_then(|producer| Some((producer, producer.setting(key)?)))
}

/// Returns true if the reference states flash attention.
fn has_flash_attention(producer: Option<&Producer>) -> bool {
    stated(producer, "flash_attention").is_some_and(|(_, stated)| stated == "on")
}

fn unknown_cache(stated: &str, known: &str) -> Error {
    Error::Usage(format!(
        "the dump has a {stated} KV cache, expected {known}; use --kv-cache f32 or f16 to compare with \
         another type, which rounds differently"
    ))
}

fn unknown_numerics(name: &str) -> Error {
    let known = NumericsOption::all().map(|choice| value_name(&choice)).collect::<Vec<_>>().join(", ");
    Error::Usage(format!(
        "the dump was made with unknown numerics {name}, expected one of {known}; choose one with --numerics"
    ))
}
