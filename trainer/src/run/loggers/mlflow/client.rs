//! Requests to an MLflow server.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::{Response, StatusCode};

/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(5);

/// Why a request failed.
#[derive(Debug)]
pub enum Refusal {
    /// The server cannot be reached or is in trouble: another attempt may succeed.
    Unreachable(String),
    /// The server refuses the request, and would do so again.
    Refused { status: u16, reason: String },
}

impl Refusal {
    /// Whether the server does not know what was asked for.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(reason) => f.write_str(reason),
            Self::Refused { status, reason } => write!(f, "status {status}: {reason}"),
        }
    }
}

/// A server.
pub struct Client {
    agent: Agent,
    url: String,
    authorization: Option<String>,
}

impl Client {
    /// The server at `url`, without a final slash. The user's name and secret are in the variables
    /// that MLflow's own client reads.
    pub fn new(url: String) -> Self {
        let agent = Agent::config_builder()
            .timeout_global(Some(LIMIT))
            .http_status_as_error(false)
            .build()
            .new_agent();
        Self {
            agent,
            url,
            authorization: authorization(|name| std::env::var(name).ok()),
        }
    }

    /// The address of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The id of the experiment, which is created if necessary.
    ///
    /// # Errors
    /// Fails if the server does not answer or refuses.
    pub fn experiment(&self, name: &str) -> Result<String, Refusal> {
        match self.experiment_by_name(name) {
            Err(refusal) if refusal.is_unknown() => {}
            found => return found,
        }
        let created = self.post("experiments/create", &json!({"name": name}));
        match created {
            Ok(answer) => text(&answer, "/experiment_id"),
            // Another run has created it since.
            Err(Refusal::Refused { .. }) => self.experiment_by_name(name),
            Err(unreachable) => Err(unreachable),
        }
    }

    fn experiment_by_name(&self, name: &str) -> Result<String, Refusal> {
        let mut request = self.agent.get(self.path("experiments/get-by-name"));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let answer = request.query("experiment_name", name).call();
        text(&read(answer)?, "/experiment/experiment_id")
    }

    /// Posts a request and returns the answer.
    ///
    /// # Errors
    /// Fails if the server does not answer or refuses.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Refusal> {
        let mut request = self.agent.post(self.path(path));
        request = request.header("content-type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        read(request.send(body.to_string()))
    }

    fn path(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.url)
    }
}

/// The header that names the user.
fn authorization(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let given = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(token) = given("MLFLOW_TRACKING_TOKEN") {
        return Some(format!("Bearer {token}"));
    }
    let user = given("MLFLOW_TRACKING_USERNAME")?;
    let password = given("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
    Some(format!(
        "Basic {}",
        STANDARD.encode(format!("{user}:{password}"))
    ))
}

fn read(answer: Result<Response<ureq::Body>, ureq::Error>) -> Result<Value, Refusal> {
    let unreachable = |error: ureq::Error| Refusal::Unreachable(error.to_string());
    let mut answer = answer.map_err(unreachable)?;
    let status = answer.status();
    let body = answer.body_mut().read_to_string().map_err(unreachable)?;
    let value = serde_json::from_str::<Value>(&body).ok();
    if status.is_success() {
        let no_json = || Refusal::Refused {
            status: status.as_u16(),
            reason: "the answer is not that of an MLflow server".to_owned(),
        };
        return value.ok_or_else(no_json);
    }
    let told = value.as_ref().and_then(|value| value["message"].as_str());
    let reason = told.or(body.lines().next()).unwrap_or_default();
    let reason: String = reason.chars().take(300).collect();
    let busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    Err(match busy {
        true => Refusal::Unreachable(format!("status {}: {reason}", status.as_u16())),
        false => Refusal::Refused {
            status: status.as_u16(),
            reason,
        },
    })
}

/// A text in an answer.
pub fn text(answer: &Value, place: &str) -> Result<String, Refusal> {
    let found = answer.pointer(place).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| Refusal::Refused {
        status: 200,
        reason: format!("the answer lacks {place}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_those_of_mlflows_own_variables() {
        let of = |given: &[(&str, &str)]| {
            let found = |name: &str| given.iter().find(|(key, _)| *key == name);
            authorization(|name| found(name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[]), None);
        let user = ("MLFLOW_TRACKING_USERNAME", "a");
        let password = ("MLFLOW_TRACKING_PASSWORD", "b");
        assert_eq!(of(&[user, password]).as_deref(), Some("Basic YTpi"));
        let token = ("MLFLOW_TRACKING_TOKEN", "t");
        assert_eq!(of(&[user, token]).as_deref(), Some("Bearer t"));
    }
}
