/** The text of the filter, as the query that is sent to the server. Pure.
 *
 * `owner:ada tag:night state:failed loss<0.3 max:acc>=0.9 words` is asked as it is written; whatever is
 * none of these is a word that must be in the name, the owner, a label or the commit.
 */

const NAMED = ["state", "owner", "project", "group", "tag", "commit", "since", "until"];
const CONDITION = /[<>=!]/;

/** Return the query for a line and an order. */
export function askedOf(line: string, sort: string): string {
  const query = new URLSearchParams();
  const words: string[] = [];
  for (const part of line.split(/\s+/).filter(Boolean)) {
    const [name = "", ...rest] = part.split(":");
    const value = rest.join(":");
    if (NAMED.includes(name.toLowerCase()) && value) {
      const key = name.toLowerCase();
      query.append(key, key === "state" ? value.toUpperCase() : value);
    } else if (CONDITION.test(part)) query.append("where", part);
    else words.push(part);
  }
  if (words.length) query.set("text", words.join(" "));
  if (sort) query.set("sort", sort);
  return query.toString();
}
