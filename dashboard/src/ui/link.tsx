import type { AnchorHTMLAttributes, MouseEvent } from "react";

import { go } from "./router";

interface Props extends AnchorHTMLAttributes<HTMLAnchorElement> {
  href: string;
}

/** A link inside the page; with a modifier key it opens as any other link does. */
export function Link({ href, onClick, children, ...rest }: Props) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(href);
    window.scrollTo(0, 0);
  };
  return (
    <a {...rest} href={href} onClick={follow}>
      {children}
    </a>
  );
}
