//! A value of a YAML document with the path of its keys.

use saphyr::{MarkedYaml, Scalar, YamlData};

use super::ImportError;

/// A value and where it is.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    path: String,
    value: &'a MarkedYaml<'a>,
}

impl<'a> Node<'a> {
    pub fn root(value: &'a MarkedYaml<'a>) -> Self {
        Self { path: String::new(), value }
    }

    /// The keys that lead here, with dots between them.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn line(&self) -> usize {
        self.value.span.start.line()
    }

    fn below(&self, key: &str, value: &'a MarkedYaml<'a>) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Self { path, value }
    }

    /// All keys of a table; none if it is not one.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, Self)> {
        let entries = match &self.value.data {
            YamlData::Mapping(entries) => Some(entries),
            _ => None,
        };
        entries.into_iter().flatten().filter_map(|(key, value)| {
            let YamlData::Value(Scalar::String(name)) = &key.data else { return None };
            Some((name.as_ref(), self.below(name, value)))
        })
    }

    pub fn get(&self, key: &str) -> Option<Self> {
        self.entries().find(|(name, _)| *name == key).map(|(_, node)| node)
    }

    /// The values of a list; `None` if it is not one.
    pub fn items(&self) -> Option<Vec<Self>> {
        match &self.value.data {
            YamlData::Sequence(items) => {
                Some(items.iter().map(|value| Self { path: self.path.clone(), value }).collect())
            }
            _ => None,
        }
    }

    pub fn is_table(&self) -> bool {
        matches!(self.value.data, YamlData::Mapping(_))
    }

    /// Text, or a number as text.
    pub fn text(&self, accepted: &str) -> Result<String, ImportError> {
        match &self.value.data {
            YamlData::Value(Scalar::String(text)) => Ok(text.to_string()),
            YamlData::Value(Scalar::Integer(number)) => Ok(number.to_string()),
            _ => Err(self.wrong(accepted)),
        }
    }

    pub fn number(&self, accepted: std::ops::RangeInclusive<u32>) -> Result<u32, ImportError> {
        let number = match &self.value.data {
            YamlData::Value(Scalar::Integer(number)) => u32::try_from(*number).ok(),
            YamlData::Value(Scalar::String(text)) => text.parse().ok(),
            _ => None,
        };
        number
            .filter(|number| accepted.contains(number))
            .ok_or_else(|| self.wrong(&format!("a whole number from {} to {}", accepted.start(), accepted.end())))
    }

    /// The value as a person would write it, for messages.
    pub fn shown(&self) -> String {
        match &self.value.data {
            YamlData::Value(Scalar::String(text)) => format!("{:?}", text.chars().take(80).collect::<String>()),
            YamlData::Value(Scalar::Integer(number)) => number.to_string(),
            YamlData::Value(Scalar::FloatingPoint(number)) => number.to_string(),
            YamlData::Value(Scalar::Boolean(is_true)) => is_true.to_string(),
            YamlData::Value(Scalar::Null) => "nothing".to_owned(),
            YamlData::Sequence(_) => "a list".to_owned(),
            _ => "a table".to_owned(),
        }
    }

    /// An error about this value.
    pub fn wrong(&self, accepted: &str) -> ImportError {
        ImportError { line: self.line(), words: format!("{} is {}; accepted: {accepted}", self.path, self.shown()) }
    }
}
