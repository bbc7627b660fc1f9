// Test of the types that openapi-typescript generates (main.py), with openapi-fetch. The lines after `@ts-expect-error` must not compile.
import createClient from "openapi-fetch";
import type { components, operations, paths } from "./api.js";

declare const process: { env: Record<string, string | undefined> };

type ErrorBody = components["schemas"]["ErrorBody"];
type AuditQuery = operations["list_audit_entries"]["parameters"]["query"];

const setting = (name: string): string => process.env[name] ?? "";
const [baseUrl, installed, registered] = [setting("URL"), setting("INSTALLED"), setting("REGISTERED")];
const image = "debian-13.0.20261101";
const clientWith = (token: string) => createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const client = clientWith(setting("TOKEN"));

function check(name: string, isGood: boolean, found: unknown): void {
  console.log(`TypeScript: ${name} ... ${isGood ? "ok" : `FAILED: ${JSON.stringify(found)}`}`);
}

function isError(error: ErrorBody | undefined, status: number): boolean {
  return error?.statuscode === status && error.message !== "" && /^DH-[0-9]{3}$/.test(error.error_code);
}

const machines = await client.GET("/v1/machines", { params: { query: { limit: 1, q: "two" } } });
check("a page of the list is selected", machines.data?.map((machine) => machine.name).join() === "two", machines);

const file = await client.POST("/v1/machine/{id}/file", { params: { path: { id: registered } }, body: { name: "by-typescript", size: "c1" } });
check("a machine file is created", file.data?.file.startsWith("machines/") ?? false, file);

const ordered = await client.POST("/v1/machine/{id}/reinstall", {
  params: { path: { id: installed }, query: { check_plan: false } },
  body: { id: installed, imageid: image },
});
check("a reinstall is ordered", ordered.data?.order?.image === image, ordered);

const query: AuditQuery = { action: "reinstall", limit: 1 };
const audit = await client.GET("/v1/audit", { params: { query } });
const entry = audit.data?.[0];
const outcome: "started" | "done" | "refused" | "failed" | undefined = entry?.outcome;
check("the audit log contains the order", outcome === "done" && entry?.object === installed, audit);

const canceled = await client.DELETE("/v1/machine/{id}/reinstall", { params: { path: { id: installed } } });
check("the reinstall is canceled", canceled.data?.order === null, canceled);

const foreign = await clientWith("0".repeat(64)).GET("/v1/machines");
check("401 is typed", foreign.response.status === 401 && isError(foreign.error, 401), foreign);
const unknown = await client.GET("/v1/machine/{id}/details", { params: { path: { id: "00000000-0000-0000-0000-0000000000ff" } } });
check("404 is typed", isError(unknown.error, 404), unknown);
const refused = await client.POST("/v1/machine/allocate", { body: { imageid: "debian-99.0" } });
check("422 is typed", isError(refused.error, 422), refused);

// Never called: only the compiler checks these requests.
export async function invalidRequests(): Promise<void> {
  // @ts-expect-error There is no such path.
  await client.GET("/v1/nothing");
  // @ts-expect-error The path parameter is missing.
  await client.GET("/v1/machine/{id}/details");
  // @ts-expect-error The limit is a number.
  await client.GET("/v1/machines", { params: { query: { limit: "1" } } });
  // @ts-expect-error The image is required.
  await client.POST("/v1/machine/{id}/reinstall", { params: { path: { id: installed } }, body: { id: installed } });
  // @ts-expect-error A role is one of three words.
  await client.PUT("/v1/users", { body: { name: "a", role: "root" } });
}
