//! Frame of every web page: head, navigation, current problems, and the response headers that forbid scripts and styles
//! of other sites.

use super::session::LoggedIn;
use super::submitted_forms::TOKEN;
use api::AppState;
use api::access::secret_masking::hide_problem_reasons;
use api::access::{self, UserRole};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use common::format::machine_ids_as_names::replace_machine_ids;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::format::{format_age, format_count};
use http_server::api_error::{ApiError, attach_error};
use http_server::server_health::ServerHealth;
use maud::{DOCTYPE, Markup, html};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Content security policy of pages: only files of this server, no inline scripts or styles, no framing by other sites.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const NAVIGATION_LINKS: [(&str, &str); 9] = [
    ("/", "Machines"),
    ("/orders", "Orders"),
    ("/rollouts", "Rollouts"),
    ("/plan", "Plan"),
    ("/layouts", "Layouts"),
    ("/images", "Images"),
    ("/sizes", "Sizes"),
    ("/templates", "Templates"),
    ("/volumes", "Volumes"),
];

/// Maximum number of problems that are visible before the list is expanded.
const VISIBLE_PROBLEMS: usize = 5;

/// Returns a complete page. `here` is the path of the navigation entry that is highlighted.
pub(crate) fn render_page(app: &AppState, person: &LoggedIn, title: &str, here: &str, main: Markup) -> Response {
    let body = html! {
        header {
            a.skip href="#main" { "Skip to content" }
            nav aria-label="Pages" {
                strong { "drophammer" }
                @for (path, name) in visible_places(person) {
                    a href=(path) aria-current=[(path == here).then_some("page")] { (name) }
                }
            }
            span #live role="status" {}
            @let identity = &person.identity;
            span.faint title=(format!("{} {}", identity.role, identity.projects.join(", "))) { (identity.user) }
            form method="post" action="/logout" { (form_token(person)) button.quiet { "Log out" } }
        }
        (show_problems(&list_visible_problems(app, person)))
        main #main tabindex="-1" { (main) }
    };
    html_response(StatusCode::OK, &render_document(title, &body))
}

/// Returns the navigation entries whose pages the user may open.
fn visible_places(person: &LoggedIn) -> impl Iterator<Item = (&'static str, &'static str)> {
    let audit = (person.identity.role == UserRole::Admin).then_some(("/audit", "Audit"));
    // The plans of all machines are computed once for all users, so users who are restricted to projects cannot open
    // the page of these plans.
    let is_restricted = person.identity.is_restricted();
    NAVIGATION_LINKS.into_iter().filter(move |(path, _)| !(is_restricted && *path == "/plan")).chain(audit)
}

/// Returns the problems that the user may see: all problems, or none if the user is restricted to projects, because
/// the problems name the files of other machines.
pub(crate) fn list_visible_problems(app: &AppState, person: &LoggedIn) -> Vec<String> {
    match person.identity.is_restricted() {
        true => Vec::new(),
        false => {
            let mut of_directory = app.directory_for(&person.identity).problems.clone();
            if !person.is_operator() {
                of_directory.iter_mut().for_each(|problem| *problem = hide_problem_reasons(problem));
            }
            let problems = list_problems(&app.counters.health, &of_directory);
            problems.iter().map(|problem| name_machines(app, person, problem)).collect()
        }
    }
}

/// Returns the current problems: those of the server itself, followed by those of the directory.
pub(crate) fn list_problems(health: &ServerHealth, of_directory: &[String]) -> Vec<String> {
    health.problems().into_iter().chain(of_directory.iter().map(|problem| reword_metal_phrases(problem))).collect()
}

/// Shows the current problems. Only the first ones are visible until the others are expanded.
pub(crate) fn show_problems(problems: &[String]) -> Markup {
    let (visible, further) = problems.split_at(problems.len().min(VISIBLE_PROBLEMS));
    html! {
        section #problems.problem role="alert" hidden[problems.is_empty()] data-visible=(VISIBLE_PROBLEMS) {
            details open {
                summary { (format_count(problems.len(), "problem", "problems")) }
                ul { @for problem in visible { li { (problem) } } }
                details.more hidden[further.is_empty()] {
                    summary { "and " (format_count(further.len(), "further problem", "further problems")) }
                    ul { @for problem in further { li { (problem) } } }
                }
                p.faint { "While a file in the directory has a problem, the last good version of the file stays in force." }
            }
        }
    }
}

pub(crate) fn form_token(person: &LoggedIn) -> Markup {
    html! { input type="hidden" name=(TOKEN) value=(person.form); }
}

/// Returns the login form, with the reason why the previous login was refused.
pub(crate) fn render_login(app: &AppState, refused: Option<ApiError>) -> Response {
    let status = refused.as_ref().map_or(StatusCode::OK, ApiError::status);
    let why = refused.map(ApiError::into_coded_message);
    let body = html! {
        main #main.narrow {
            h1 { "drophammer" }
            @if let Some(why) = why { p.problem role="alert" { (why) } }
            @if let Some(provider) = &app.oidc {
                p { a.button href="/oidc/login" { "Log in with " (provider.settings().label) } }
            }
            form method="post" action="/login" {
                label for="token" { "Token" }
                input #token type="password" name="token" autocomplete="current-password" required autofocus;
                button { "Log in" }
            }
            p.faint { "Use your own token, or the operator's token, which is in operator.token in the server's directory." }
        }
    };
    html_response(status, &render_document("Log in", &body))
}

/// Returns the part of a machine's message that the current user may read, in the product's own wording.
pub(crate) fn reword_message(message: &str) -> String {
    reword_metal_phrases(access::visible_message(message))
}

/// Returns the status and the message of an error, in the product's own wording and with its error code. The REST API
/// uses metal-api's phrases instead, because metal-api's clients compare them.
pub(crate) fn operator_words(error: ApiError) -> (StatusCode, String) {
    (error.status(), reword_metal_phrases(&error.into_coded_message()))
}

/// Replaces the ids of machines in a message by their names, if the user may access the machines.
pub(crate) fn name_machines(app: &AppState, person: &LoggedIn, message: &str) -> String {
    let directory = app.directory_for(&person.identity);
    replace_machine_ids(message, |id| Some(directory.display_name(&id.to_lowercase()).to_owned()))
}

/// Returns the status and the message of an error as [`operator_words`] does, but with machine names instead of ids.
pub(crate) fn named_words(app: &AppState, person: &LoggedIn, error: ApiError) -> (StatusCode, String) {
    let (status, message) = operator_words(error);
    (status, name_machines(app, person, &message))
}

/// Returns an error page.
pub(crate) fn render_error(app: &AppState, person: Option<&LoggedIn>, error: ApiError) -> Response {
    let (code, logged) = (error.error_code(), reword_metal_phrases(error.message()));
    let (status, message) = operator_words(error);
    let named = person.map_or_else(|| message.clone(), |person| name_machines(app, person, &message));
    let main = html! {
        h1 { (if status.is_server_error() { "Failed" } else { "Refused" }) }
        p.problem.words role="alert" title=[(named != message).then_some(&message)] { (named) }
        @if person.is_none() { p { a href="/login" { "Log in" } } }
    };
    let mut response = match person {
        Some(person) => render_page(app, person, "Refused", "", main),
        None => html_response(status, &render_document("Refused", &html! { main #main.narrow { (main) } })),
    };
    *response.status_mut() = status;
    attach_error(&mut response, logged, code);
    response
}

/// Returns a page that opens the list of machines. A redirect would not work, because the identity provider's site
/// has caused this request, and browsers would not send the session's cookie with the redirected request.
pub(crate) fn render_logged_in(user: &str) -> Response {
    let body = html! {
        main #main.narrow {
            h1 { "drophammer" }
            p { "Logged in as " (user) "." }
            p { a.button href="/" { "Continue" } }
        }
    };
    html_response(StatusCode::OK, &render_document_with("Logged in", &body, Some("0;url=/")))
}

fn render_document(title: &str, body: &Markup) -> Markup {
    render_document_with(title, body, None)
}

fn render_document_with(title: &str, body: &Markup, refresh: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(refresh) = refresh { meta http-equiv="refresh" content=(refresh); }
                title { (title) " · drophammer" }
                link rel="stylesheet" href="/page.css";
                link rel="icon" href="/page.svg" type="image/svg+xml";
                script src="/page.js" defer {}
            }
            body { (body) }
        }
    }
}

/// Returns whether the client accepts HTML, as browsers do.
pub(crate) fn is_for_browser(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

/// Returns a response with HTML: a page, or a fragment of a page.
pub(crate) fn html_response(status: StatusCode, markup: &Markup) -> Response {
    with_headers((status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], markup.0.clone()).into_response())
}

pub(crate) fn with_headers(mut response: Response) -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
        (header::VARY, "accept, cookie"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Shows how long ago an event happened, with its time as a tooltip. A time that cannot be parsed is shown unchanged.
pub(crate) fn show_age(text: &str) -> Markup {
    let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) else { return show_time(text) };
    let seconds = u64::try_from((OffsetDateTime::now_utc() - time).whole_seconds()).unwrap_or_default();
    let age = if seconds < 60 { "now".to_owned() } else { format_age(seconds) };
    html! { time.age datetime=(text) title={ (to_second(text)) " UTC" } { (age) } }
}

/// Formats a time in UTC, to the second.
pub(crate) fn show_time(text: &str) -> Markup {
    html! { time datetime=(text) title="UTC" { (to_second(text)) } }
}

/// Formats the time of day in UTC, to the second, with the date as a tooltip.
pub(crate) fn show_time_of_day(text: &str) -> Markup {
    let second = to_second(text);
    html! { time datetime=(text) title={ (second) " UTC" } { (second.get(11..).unwrap_or(&second)) } }
}

fn to_second(text: &str) -> String {
    text.get(..19).map_or_else(|| text.to_owned(), |second| second.replace('T', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_problems_are_visible() {
        let problems: Vec<String> = (1..=7).map(|number| format!("problem {number}")).collect();
        let shown = show_problems(&problems).0;
        let (visible, further) = shown.split_once("<details class=\"more\"><summary>and 2 further problems").unwrap();
        assert!(visible.contains("7 problems") && visible.matches("<li>").count() == 5, "{visible}");
        assert!(further.contains("<li>problem 6</li><li>problem 7</li>"), "{further}");
        assert!(show_problems(&problems[..5]).0.contains("<details class=\"more\" hidden>"));
    }

    #[test]
    fn times_of_day_have_the_date_as_a_tooltip() {
        let shown = show_time_of_day("2026-11-28T10:00:30.5Z").0;
        assert!(shown.contains("title=\"2026-11-28 10:00:30 UTC\"") && shown.ends_with(">10:00:30</time>"), "{shown}");
        for short in ["", "yesterday", "2026-11-28é"] {
            assert!(show_time_of_day(short).0.ends_with(&format!(">{short}</time>")), "{short}");
        }
    }

    #[test]
    fn ages_have_the_exact_time_as_a_tooltip() {
        let shown = show_age("2020-01-02T03:04:05.678Z").0;
        assert!(shown.starts_with("<time class=\"age\" datetime=\"2020-01-02T03:04:05.678Z\""), "{shown}");
        assert!(shown.contains("title=\"2020-01-02 03:04:05 UTC\"") && shown.ends_with(" d ago</time>"), "{shown}");
        for future in ["2999-01-02T03:04:05Z", &OffsetDateTime::now_utc().format(&Rfc3339).unwrap()] {
            assert!(show_age(future).0.ends_with(">now</time>"), "{future}");
        }
        for invalid in ["yesterday", "", "2020-01-02"] {
            assert!(show_age(invalid).0.ends_with(&format!(">{invalid}</time>")), "{invalid}");
        }
    }
}
