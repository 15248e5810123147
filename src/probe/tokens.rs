//! Comparison of a server's tokenizer with the model's.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::probe::answer::MissingAnswer;
use crate::probe::check::{ProbeCheck, ProbeSubject};
use crate::probe::server::{ConversationMessage, RenderedConversation, ServerApi};
use crate::tokenizer::Tokenizer;
use crate::verdict::Verdict;

/// Texts on which tokenizers differ: spaces, line breaks, digits, punctuation, scripts and symbols.
pub const TEXTS: [&str; 8] = [
    "Hello, world! It's 12345.67",
    "  two spaces,\n\na line\tand a tab  ",
    "naïve café – “quotes” … ½",
    "Привет, 你好世界, こんにちは, مرحبا",
    "🙂👩\u{200d}💻 e\u{301}",
    "def f(x):\n    return x**2  # square\n",
    "don't we'll I'm he'd THEY'RE",
    "<unk> a_b::c 0x1F 3.14e-10",
];

/// Compares the ids of each text, with and without the tokens that begin a prompt. `lacking` is the reason if
/// there is no tokenizer.
///
/// # Errors
/// If the server fails, or the model's own tokenizer is invalid.
pub(crate) fn tokenization(
    server: &dyn ServerApi,
    own: Option<&dyn Tokenizer>,
    lacking: &str,
) -> Result<ProbeCheck> {
    const NAME: &str = "texts give the same tokens";
    let Some(own) = own else {
        return Ok(ProbeCheck::cannot(ProbeSubject::Tokens, NAME, lacking));
    };
    let (mut same, mut special_too) = (0, true);
    for text in TEXTS {
        for special in [true, false] {
            let theirs = match server.tokenize(text, special) {
                Ok(theirs) => theirs,
                Err(MissingAnswer::Cannot(_)) if !special => {
                    special_too = false;
                    continue;
                }
                Err(MissingAnswer::Cannot(why)) if same > 0 => {
                    let told = format!("{text:?} was refused, but other texts were not: {why}");
                    return Ok(ProbeCheck::new(ProbeSubject::Tokens, NAME, (Verdict::Inconclusive, told)));
                }
                Err(refusal) => return ProbeCheck::refused(ProbeSubject::Tokens, NAME, refusal),
            };
            let ours = own.encode(text, special)?;
            if theirs != ours {
                return Ok(ProbeCheck::new(
                    ProbeSubject::Tokens,
                    NAME,
                    (Verdict::Fail, parting(format_args!("{text:?}"), &theirs, &ours)),
                ));
            }
            same += 1;
        }
    }
    let how = if special_too { "with and without special tokens" } else { "as prompts" };
    Ok(ProbeCheck::new(
        ProbeSubject::Tokens,
        NAME,
        (Verdict::Pass, format!("{} texts, {how}: {same} identical lists of ids", TEXTS.len())),
    ))
}

/// Describes the first difference between two lists of ids. If it is a known mistake, gives its name.
fn parting(text: impl Display, theirs: &[u32], ours: &[u32]) -> String {
    let named = match (theirs, ours) {
        ([first, rest @ ..], _) if rest == ours && ours.first() == Some(first) => {
            format!("the BOS token ({first}) appears twice")
        }
        ([first, rest @ ..], _) if rest == ours => {
            format!("the prompt begins with {first}, expected no BOS token")
        }
        (_, [first, rest @ ..]) if rest == theirs => {
            format!("the BOS token ({first}) is missing")
        }
        _ => {
            let at = theirs.iter().zip(ours).take_while(|(one, other)| one == other).count();
            let id = |ids: &[u32]| ids.get(at).map_or("the end".to_owned(), u32::to_string);
            format!("token {} is {}, expected {}", at + 1, id(theirs), id(ours))
        }
    };
    format!("{text}: {named}")
}

/// A conversation. The rendered text must contain all of its words.
pub(crate) const CONVERSATION: [ConversationMessage; 3] =
    [("user", "Name the 3 colours."), ("assistant", "Red, green, blue."), ("user", "And in German?")];

/// The chat template in the model's own files, rendered.
#[derive(Clone, Debug, Default)]
pub struct ModelTemplate {
    /// The rendered `CONVERSATION`, if it is known.
    pub words: Option<String>,
    /// BOS token as text; empty if the model has none.
    pub beginning: String,
    /// True if the rendered text depends on the date.
    pub has_a_date: bool,
}

/// Checks that a server's template is the model's. Compares the rendered text if it is known. Otherwise looks for
/// markers that are not tokens of the model, a repeated BOS token, and missing messages.
///
/// # Errors
/// If the server breaks, or the model's own tokenizer cannot be used.
pub fn template(
    server: &dyn ServerApi,
    own: Option<&dyn Tokenizer>,
    known: &ModelTemplate,
    lacking: &str,
) -> Result<ProbeCheck> {
    const NAME: &str = "the template is the model's";
    let Some(own) = own else {
        return Ok(ProbeCheck::cannot(ProbeSubject::Tokens, NAME, lacking));
    };
    let wrong = match server.template(&CONVERSATION) {
        Ok(RenderedConversation::Text(text)) => {
            wrong_words(&text, own, &known.beginning, known.words.as_deref())?
        }
        Ok(RenderedConversation::Ids(ids)) => wrong_ids(&ids, own, known)?,
        Err(refusal) => return ProbeCheck::refused(ProbeSubject::Tokens, NAME, refusal),
    };
    let found = match (wrong, &known.words) {
        (Some(wrong), _) if known.has_a_date => (Verdict::Inconclusive, format!("{wrong}; inconclusive, because the chat template inserts a date, which may be the difference")),
        (Some(wrong), _) => (Verdict::Fail, wrong),
        (None, Some(_)) => (Verdict::Pass, "its text is the same as that of the model's own template".to_owned()),
        (None, None) => (
            Verdict::Pass,
            "all messages are there in order, and all markers are tokens (the text of the template was not compared)"
                .to_owned(),
        ),
    };
    Ok(ProbeCheck::new(ProbeSubject::Tokens, NAME, found))
}

fn wrong_ids(ids: &[u32], own: &dyn Tokenizer, known: &ModelTemplate) -> Result<Option<String>> {
    if let [first, second, ..] = ids
        && first == second
    {
        return Ok(Some(format!(
            "the BOS token ({first}) appears twice: the template and the tokenizer add it"
        )));
    }
    // Control tokens are decoded to nothing. A marker that remains in the text was not a token; words are
    // compared by their ids.
    let wrong = wrong_words(&own.decode_lossy(ids)?, own, &known.beginning, None)?;
    match (&wrong, &known.words) {
        (None, Some(words)) => other_ids(ids, &own.encode(words, false)?, own),
        _ => Ok(wrong),
    }
}

/// Describes the first difference of two lists of ids, with the text there.
fn other_ids(theirs: &[u32], ours: &[u32], own: &dyn Tokenizer) -> Result<Option<String>> {
    const SHOWN: usize = 8;
    if theirs == ours {
        return Ok(None);
    }
    let at = theirs.iter().zip(ours).take_while(|(one, other)| one == other).count();
    let behind = |ids: &[u32]| own.decode_lossy(&ids[at..ids.len().min(at + SHOWN)]);
    let (found, expected) = (behind(theirs)?, behind(ours)?);
    let parting = parting("token ids", theirs, ours);
    Ok(Some(match found == expected {
        true => parting,
        false => format!("{parting}: it writes {found:?} there, expected {expected:?}"),
    }))
}

fn wrong_words(
    text: &str,
    own: &dyn Tokenizer,
    beginning: &str,
    words: Option<&str>,
) -> Result<Option<String>> {
    let begun = |text: &str| text.strip_prefix(beginning).unwrap_or(text).to_owned();
    if !beginning.is_empty() && begun(text).starts_with(beginning) {
        return Ok(Some(format!("it begins with {beginning:?} twice")));
    }
    for mark in marks(text) {
        if own.encode(mark, false)?.len() > 1 {
            return Ok(Some(format!("it writes {mark}, which is not a token of this model")));
        }
    }
    let mut rest = text;
    for (_, said) in CONVERSATION {
        let Some(at) = rest.find(said) else {
            return Ok(Some(format!("it omits or moves the message {said:?}")));
        };
        rest = &rest[at + said.len()..];
    }
    // Some templates contain the BOS token, and others leave it to the tokenizer.
    Ok(words.and_then(|words| other_words(&begun(text), &begun(words))))
}

/// Describes the first difference of two texts.
fn other_words(theirs: &str, ours: &str) -> Option<String> {
    const SHOWN: usize = 24;
    let at = theirs.chars().zip(ours.chars()).take_while(|(one, other)| one == other).count();
    let behind = |text: &str| text.chars().skip(at).take(SHOWN).collect::<String>();
    let (found, expected) = (behind(theirs), behind(ours));
    (theirs != ours).then(|| format!("after {at} characters it writes {found:?}, expected {expected:?}"))
}

/// Returns the markers in a text, such as `<|im_start|>`.
fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("<|").filter_map(|(start, _)| {
        let length = text[start..].find("|>")? + 2;
        Some(&text[start..start + length])
    })
}

/// Returns the server's token ids of a prompt. `None` if the server does not return ids.
///
/// # Errors
/// If the server fails.
pub fn of_prompt(server: &dyn ServerApi, text: &str) -> Result<Option<Vec<u32>>> {
    match server.tokenize(text, true) {
        Ok(ids) => Ok(Some(ids)),
        Err(MissingAnswer::Cannot(_) | MissingAnswer::NotAsked(_)) => Ok(None),
        Err(MissingAnswer::Broken(error)) => Err::<_, Error>(*error),
    }
}
