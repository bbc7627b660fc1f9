//! Requests that create, update and delete a document of the server: a layout, a size or an image.

use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::replace_hidden;
use common::output::print_text;
use reqwest::Method;
use serde_json::Value;

/// Endpoint for documents of one type.
pub(super) struct DocumentEndpoint<'a> {
    pub server: &'a OperatorClient,
    /// Noun at the start of a sentence, such as `Layout`.
    pub noun: &'static str,
    pub path: &'static str,
    /// Path and query of the list of all documents.
    pub list: &'static str,
    /// Print the server's response as JSON.
    pub as_json: bool,
}

impl DocumentEndpoint<'_> {
    /// Creates the document. Refused if the server has a document with the same id.
    pub(super) fn create_document(&self, document: &Value) -> Result<CommandOutcome> {
        self.send_document(Method::PUT, document, "was created")
    }

    /// Creates the document, or updates the document with the same id.
    pub(super) fn apply_document(&self, document: &Value) -> Result<CommandOutcome> {
        let all = match self.server.send_json::<Vec<Value>>(self.server.request(Method::GET, self.list))? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(all) => all,
        };
        match all.iter().any(|one| one["id"] == document["id"]) {
            true => self.send_document(Method::POST, document, "was updated from the file"),
            false => self.create_document(document),
        }
    }

    /// Deletes the document with this id.
    pub(super) fn delete_document(&self, id: &str) -> Result<CommandOutcome> {
        let path = format!("{}{}", self.path, encode_segment(id));
        self.print_done(self.server.send_json(self.server.request(Method::DELETE, &path))?, "was deleted")
    }

    fn send_document(&self, method: Method, document: &Value, done: &str) -> Result<CommandOutcome> {
        self.print_done(self.server.send_json(self.server.request(method, self.path).json(document))?, done)
    }

    fn print_done(&self, answer: OperatorResponse<Value>, done: &str) -> Result<CommandOutcome> {
        match answer {
            OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
            OperatorResponse::Good(document) if self.as_json => print_json(&document),
            OperatorResponse::Good(document) => {
                let id = replace_hidden(document["id"].as_str().unwrap_or_default());
                print_text(&format!("{} {id} {done}.\n", self.noun)).map(|()| CommandOutcome::Good)
            }
        }
    }
}
