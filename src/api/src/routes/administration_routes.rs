//! Endpoints for users, their tokens, the audit log, and the problems of the server.

use super::description::{ApiRoute, RequiredToken, delete_route, get_route, post_route, put_route};
use crate::access::Identity;
use crate::audit_log::{self, AuditEntry, AuditQuery};
use crate::json_schemas::{list_schema, request_schema, response_schema};
use crate::oidc_login::{self, ExchangedToken, IdTokenExchange, OidcLoginInfo};
use crate::openapi::parameters::query_parameters;
use crate::server_problems::{self, ServerProblem};
use crate::user_management::{self, CreatedToken, NewToken, NewUser, UserChange, UserDetails, UserRecord, UserToken};

pub(super) fn user_routes() -> Vec<ApiRoute> {
    let (users, one_user, tokens) = ("/v1/users", "/v1/users/{name}", "/v1/users/{name}/tokens");
    vec![
        get_route("/v1/whoami", user_management::get_whoami, "User, role and projects of the token")
            .with_response(response_schema::<Identity>),
        get_route("/v1/problems", server_problems::list_problems, "Problems in the server's own operation")
            .with_response(list_schema::<ServerProblem>),
        get_route(users, user_management::list_users, "Users").with_response(list_schema::<UserRecord>),
        put_route(users, user_management::add_user, "Add a user")
            .with_request(request_schema::<NewUser>)
            .with_created(response_schema::<UserRecord>),
        get_route(one_user, user_management::get_user, "One user, with the user's tokens")
            .with_response(response_schema::<UserDetails>),
        post_route(one_user, user_management::change_user, "Change, disable or enable a user")
            .with_request(request_schema::<UserChange>)
            .with_response(response_schema::<UserRecord>),
        delete_route(one_user, user_management::remove_user, "Remove a user with all tokens")
            .with_response(response_schema::<UserRecord>),
        get_route(
            tokens,
            user_management::list_tokens,
            "Names and states of a user's tokens; their secret values are not returned",
        )
        .with_response(list_schema::<UserToken>),
        post_route(tokens, user_management::create_token, "Create a token")
            .with_request(request_schema::<NewToken>)
            .with_created(response_schema::<CreatedToken>),
        delete_route("/v1/users/{name}/tokens/{token}", user_management::revoke_token, "Revoke a token")
            .with_response(response_schema::<UserToken>),
        get_route("/v1/oidc", oidc_login::get_info, "Identity provider for `drophammer login`")
            .with_token(RequiredToken::None)
            .with_response(response_schema::<OidcLoginInfo>),
        post_route("/v1/oidc/token", oidc_login::exchange_token, "Exchange an ID token for a token of this server")
            .with_token(RequiredToken::None)
            .with_request(request_schema::<IdTokenExchange>)
            .with_created(response_schema::<ExchangedToken>),
        get_route("/v1/audit", audit_log::get_audit, "Entries of the audit log, the newest first")
            .with_parameters(query_parameters::<AuditQuery>)
            .with_response(list_schema::<AuditEntry>),
    ]
}
